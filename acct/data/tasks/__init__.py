"""One file per data set; `registry.py` maps a name to its class (spec 8)."""
