"""Fits what lookup's candidates are worth, on answers that the n-gram store has not seen.

An example is one answer position as a drafted node: every candidate after the text so far, with
its features, and which of them the target wrote, if any. Nodes stand at several depths below an
anchor: the sequence's own index ends at the anchor, and the path holds the target's tokens, as
nodes with accepted ancestors have it. The weights are the maximum of the likelihood of the
logistic choice (canopy_kernels.ngram.continuations) with a small ridge, found by Newton's method.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from canopy.drafter.lookup.suffix_index import SuffixIndex
from canopy_kernels.ngram.candidates import LONGEST_GRAM, LONGEST_MATCH, Drafted, nothing_drafted
from canopy_kernels.ngram.continuations import NUM_FEATURES, candidate_features
from canopy_kernels.ngram.ngram_table import NgramTable
from canopy_training.corpus.corpus import Answer, InvalidCorpus
from canopy_training.lookup.ngrams import is_held_out
from canopy_training.lookup.reliability import Check

MAX_DEPTH = 16
_RIDGE = 3.0  # examples' worth of pull towards 0
_NEWTON_STEPS = 40
_TOLERANCE = 1e-4
_SUFFIX = max(LONGEST_MATCH, LONGEST_GRAM)


# A drafter model's candidates for an answer: by the number of tokens up to the anchor, and path.
Drafting = Callable[[Answer], Callable[[int, list[int]], Drafted]]


@dataclass(frozen=True)
class Examples:
    """Candidates of n nodes, e in all; nodes without a candidate are left out."""

    features: np.ndarray  # float64 [e, NUM_FEATURES]
    nodes: np.ndarray  # int64 [e] ascending
    accepted: np.ndarray  # bool [e], one of a node at most
    depths: np.ndarray  # int64 [e], from 1

    @property
    def num_nodes(self) -> int:
        return int(self.nodes[-1]) + 1 if len(self.nodes) else 0


def gather(
    answers: Iterable[Answer],
    ngrams: NgramTable,
    max_match: int,
    min_match: int = 1,
    drafting: Drafting | None = None,
) -> Examples:
    """The candidates at every position of the answers, at depths 1 to MAX_DEPTH in turn.

    With a drafter, at those alone where it has some.
    """
    features, nodes, accepted, depths = [], [], [], []
    num_nodes = 0
    for answer in answers:
        for token_ids, rows, token, depth in _nodes(answer, ngrams, max_match, min_match, drafting):
            if len(token_ids):
                features.append(rows)
                nodes.append(np.full(len(rows), num_nodes))
                accepted.append(token_ids == token)
                depths.append(np.full(len(rows), depth))
                num_nodes += 1
    if not features:
        empty = np.zeros(0, np.int64)
        return Examples(np.zeros((0, NUM_FEATURES)), empty, empty.astype(bool), empty)
    return Examples(*map(np.concatenate, (features, nodes, accepted, depths)))


def _nodes(
    answer: Answer, ngrams: NgramTable, max_match: int, min_match: int, drafting: Drafting | None
) -> Iterator[tuple[np.ndarray, np.ndarray, int, int]]:
    """(candidates, features, token that came, depth) of one answer's positions.

    Anchors stand so that depth 1 is met at every other position, and deeper nodes less often.
    """
    index, text = SuffixIndex(max_match), answer.token_ids.tolist()
    drafted, nothing = drafting(answer) if drafting else None, nothing_drafted()
    for position, span in anchor_positions(len(answer.prompt_ids), len(text)):
        index.extend(text[index.num_tokens : position])
        for depth in range(1, min(span, len(text) - position) + 1):
            path = text[position : position + depth - 1]
            found = drafted(position, path) if drafted else nothing
            if drafted and not len(found.token_ids):
                continue
            suffix = index.suffix(path, _SUFFIX)
            token_ids, rows = candidate_features(
                index.table, ngrams, found, suffix, depth, min_match
            )
            yield token_ids, rows, text[position + depth - 1], depth


def anchor_positions(num_prompt: int, num_tokens: int) -> list[tuple[int, int]]:
    """Numbers of tokens up to each anchor, with the depths that are looked at below it."""
    positions, position, span = [], num_prompt, 1
    while position < num_tokens:
        positions.append((position, span))
        position += span
        span = span % MAX_DEPTH + 1
    return positions


def fit(examples: Examples) -> np.ndarray:
    """float64 [NUM_FEATURES] weights; a Newton step that overshoots is halved."""
    weights, loss = np.zeros(NUM_FEATURES), np.inf
    step = np.zeros(NUM_FEATURES)
    for _ in range(_NEWTON_STEPS):
        tried = _penalized_loss(examples, weights + step)
        if tried > loss:
            step = step / 2.0
            continue
        weights, loss = weights + step, tried
        step = _newton_step(examples, weights)
        if np.abs(step).max() < _TOLERANCE:
            break
    return weights


def _newton_step(examples: Examples, weights: np.ndarray) -> np.ndarray:
    probs = acceptance(examples, weights)
    weighted = examples.features * probs[:, None]
    means = np.zeros((examples.num_nodes, NUM_FEATURES))
    np.add.at(means, examples.nodes, weighted)
    gradient = examples.features.T @ (probs - examples.accepted) + _RIDGE * weights
    curvature = weighted.T @ examples.features - means.T @ means
    return -np.linalg.solve(curvature + _RIDGE * np.eye(NUM_FEATURES), gradient)


def _penalized_loss(examples: Examples, weights: np.ndarray) -> float:
    return examples.num_nodes * log_loss(examples, weights) + _RIDGE / 2.0 * weights @ weights


def acceptance(examples: Examples, weights: np.ndarray) -> np.ndarray:
    """float64 [e]: the share of each candidate in its node's choice."""
    scores = examples.features @ weights
    peaks = np.zeros(examples.num_nodes)
    np.maximum.at(peaks, examples.nodes, scores)
    terms = np.exp(scores - peaks[examples.nodes])
    totals = np.exp(-peaks) + np.bincount(examples.nodes, terms, examples.num_nodes)
    return terms / totals[examples.nodes]


def log_loss(examples: Examples, weights: np.ndarray) -> float:
    """Mean nats of what came, over nodes."""
    probs = acceptance(examples, weights)
    hits = np.bincount(examples.nodes, probs * examples.accepted, examples.num_nodes)
    missed = 1.0 - np.bincount(examples.nodes, probs, examples.num_nodes)
    return float(-np.log(np.where(hits > 0.0, hits, np.maximum(missed, 1e-12))).mean())


def fit_and_check(
    answers: Iterable[Answer], ngrams: NgramTable, max_match: int, drafting: Drafting | None = None
) -> tuple[Check, np.ndarray]:
    """Weights of all held-out answers, and how well those of one half foretell the other.

    Raises InvalidCorpus when nothing was held out.
    """
    held_out = [answer for answer in answers if is_held_out(answer.number)]
    halves = [
        gather(
            (a for a in held_out if a.number // 2 // 10 % 2 == half),
            ngrams,
            max_match,
            drafting=drafting,
        )
        for half in (0, 1)
    ]
    if not all(half.num_nodes for half in halves):
        raise InvalidCorpus("too few answers are held out, one pair in ten: answer more prompts")
    unseen = halves[1]
    probs = acceptance(unseen, fit(halves[0]))
    check = Check(unseen.features, unseen.depths, probs, unseen.accepted)
    return check, fit(joined(halves))


def joined(parts: Sequence[Examples]) -> Examples:
    """All of several examples."""
    firsts = np.cumsum([0, *(part.num_nodes for part in parts)])
    return Examples(
        np.concatenate([part.features for part in parts]),
        np.concatenate([p.nodes + first for p, first in zip(parts, firsts, strict=False)]),
        np.concatenate([part.accepted for part in parts]),
        np.concatenate([part.depths for part in parts]),
    )
