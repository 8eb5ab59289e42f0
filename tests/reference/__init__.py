"""Slow float64 twins: one loop per index, written from the formulas and not from the code they check."""
