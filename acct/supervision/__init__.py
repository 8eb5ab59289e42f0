"""What the Cartographer learns from: deletion utility of context tokens, and pairs drawn from it (spec 5, paper B.1)."""
