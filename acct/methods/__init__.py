"""The rows of the tables: what each method mounts, and on which model (spec 8, 11)."""
