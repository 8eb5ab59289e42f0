"""Scoring of predictions and the evaluation run (spec 8)."""
