"""The embedded families: a small invented world, its eleven data sets, and six tiny models of real classes trained on it."""
