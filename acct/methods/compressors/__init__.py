"""Same-model compressors on the target: selection only, the target's own states are mounted by the usual path (spec 8, 11)."""
