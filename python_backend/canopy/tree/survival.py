"""What a drafted node is worth: acceptance of an edge, calibrated, and survival of a path.

    edge acceptance = sigmoid(slope * logit(score) + intercept)     two numbers per source
    survival(node)  = product of the edge acceptances from the anchor to the node

One child at most is accepted, so the acceptances of a node's children never add up to more than
1: where they would, they are scaled down. A map that rises keeps siblings in order and reads
nothing but their scores, so where children are drawn it stays known before the draw.

The two numbers are fitted by logistic regression on edges whose ancestors were accepted, as
TreeSpark does (Platt, 1999). Online, one shift of the log-odds follows what became of the
verified nodes; it is bounded, so that a strange hour cannot undo the fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Acceptance of the first, second, ... child of a node, its earlier siblings having failed or not:
# a mid-sized drafter on mixed text. Measured rates replace them.
SIBLING_RATES = (0.55, 0.14, 0.07, 0.04, 0.03, 0.02, 0.015, 0.01)

MAX_CORRECTION = 1.0  # log-odds
_LEARNING_RATE = 0.05  # log-odds for a step that brought twice and one more than foreseen
_MAX_STEP = 0.3  # of a step that brought more than trees are deep
_RIDGE = 1.0  # pull of the fit towards the identity, in edges


@dataclass(frozen=True)
class Calibration:
    """The map from one source's score to edge acceptance; the default believes the score."""

    slope: float = 1.0  # positive
    intercept: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.slope < math.inf and math.isfinite(self.intercept)):
            raise ValueError("a calibration rises: its slope is positive, both numbers finite")

    def siblings(self, log_probs: Sequence[float]) -> Sequence[float]:
        """Log acceptance of a node's children from their log scores, both at most 0."""
        if self == _IDENTITY:
            return log_probs
        calibrated = [self._edge(log_prob) for log_prob in log_probs]
        total = math.fsum(map(math.exp, calibrated))
        excess = math.log(total) if total > 1.0 else 0.0
        return [log_prob - excess for log_prob in calibrated]

    def _edge(self, log_prob: float) -> float:
        rest = -math.expm1(log_prob)  # 1 - score
        if rest <= 0.0:
            return 0.0
        log_odds = self.slope * (log_prob - math.log(rest)) + self.intercept
        return -math.log1p(math.exp(-log_odds)) if log_odds > -700.0 else log_odds


_IDENTITY = Calibration()


def correct_log_odds(
    log_probs: np.ndarray, parents: np.ndarray, log_odds_correction: float
) -> np.ndarray:
    """Edge acceptances of a forest with their log-odds shifted; float64 [n].

    log_probs: [n], at most 0. parents: int [n], indices into the same array, negative at the
    anchors, which keep their 0.
    """
    logs = np.asarray(log_probs, np.float64)
    if log_odds_correction == 0.0 or len(logs) == 0:
        return logs
    edges = parents >= 0
    weight = np.exp(logs + log_odds_correction)
    acceptance = np.where(edges, weight / (1.0 - np.exp(logs) + weight), 1.0)
    totals = np.bincount(parents[edges], acceptance[edges], minlength=len(logs))
    return np.log(acceptance) - np.where(edges, np.log(np.maximum(totals[parents], 1.0)), 0.0)


def updated_correction(log_odds_correction: float, num_accepted: float, expected: float) -> float:
    """The shift after a step that accepted `num_accepted` nodes where `expected` were foreseen.

    A step along the miss; its weight depends on what was foreseen and not on what came, so that
    the shift rests where the foreseen is right on average. Numbers that are none change nothing.
    """
    if not (0.0 <= num_accepted < math.inf and 0.0 <= expected < math.inf):
        return log_odds_correction
    step = _LEARNING_RATE * (num_accepted - expected) / (1.0 + expected)
    return max(-MAX_CORRECTION, min(MAX_CORRECTION, log_odds_correction + min(step, _MAX_STEP)))


def fit_calibration(log_probs: np.ndarray, accepted: np.ndarray) -> Calibration:
    """Maximum likelihood on edges whose ancestors were accepted, pulled a little to the identity.

    log_probs: float [n] log scores. accepted: bool [n]. Newton's method from the identity; data
    that would turn the order of the scores round give the identity.
    """
    logs = np.minimum(np.asarray(log_probs, np.float64), -1e-9)
    features = np.stack([logs - np.log(-np.expm1(logs)), np.ones(len(logs))], axis=1)
    start = np.array([_IDENTITY.slope, _IDENTITY.intercept])
    weights = start.copy()
    for _ in range(30):
        probs = 1.0 / (1.0 + np.exp(-np.clip(features @ weights, -50.0, 50.0)))
        gradient = features.T @ (probs - accepted) + _RIDGE * (weights - start)
        curvature = (features * (probs * (1.0 - probs))[:, None]).T @ features
        weights = weights - np.linalg.solve(curvature + _RIDGE * np.eye(2), gradient)
    slope, intercept = weights.tolist()
    return Calibration(slope, intercept) if 0.0 < slope < math.inf else _IDENTITY
