"""The command line: parse, build, call; no arithmetic."""
