"""Tree policies: which nodes are drafted and verified. Pure functions over numpy arrays."""

from canopy.policy.shapes import PolicySettings, rank, ranked, select, width, widths
from canopy.policy.survival import Calibration

__all__ = ["Calibration", "PolicySettings", "rank", "ranked", "select", "width", "widths"]
