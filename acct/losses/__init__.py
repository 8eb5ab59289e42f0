"""Losses of the three stages, one function per term; weights live in the configuration (spec 5)."""
