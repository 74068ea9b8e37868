"""The laws of acceptance behind one signature, and the draws of the drafter that two of them need.

accept(tree, rows, logits, params, num_tokens, num_emitted) -> Verdict
"""

from canopy.acceptance.random_source import draft_noise
from canopy.acceptance.rejection import draw_children, slot_log_probs
from canopy.acceptance.result import Verdict
from canopy.acceptance.rules import accept

__all__ = ["Verdict", "accept", "draft_noise", "draw_children", "slot_log_probs"]
