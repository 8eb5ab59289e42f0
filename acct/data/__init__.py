"""Tasks, prompts, row sources and the fixed evaluation sample (spec 7, 8)."""
