"""Tree policies: which nodes are drafted and verified. Pure functions over numpy arrays."""

from canopy.policy.shapes import PolicySettings, rank, select, widths

__all__ = ["PolicySettings", "rank", "select", "widths"]
