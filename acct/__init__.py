"""Asymmetric cross-LLM context transfer (ACCT): the modules, their training, their evaluation and the rival methods."""
