"""The acceptance rules behind one signature, and the draws of the drafter that two of them need.

accept(tree, rows, logits, params, num_tokens) -> VerificationResult
"""

from canopy.acceptance.random_source import draft_noise
from canopy.acceptance.rejection import draw_children, slot_log_probs
from canopy.acceptance.result import VerificationResult
from canopy.acceptance.rules import accept

__all__ = ["VerificationResult", "accept", "draft_noise", "draw_children", "slot_log_probs"]
