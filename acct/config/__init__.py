"""Configuration: one dataclass for each Hydra group, checked when it is built."""
