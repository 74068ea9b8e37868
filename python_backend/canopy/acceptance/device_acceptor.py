"""Acceptance by the kernels, on the device that computed the logits.

Trees are told apart by how they are decided: along tokens that the target alone decides, by
recursive rejection, or by traversal. The trees of one rule take one launch of each kernel. What
the kernels read goes to the device in one copy, before them; their verdicts come back in one, and
nothing in between waits for the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from canopy.acceptance.acceptor import Candidate
from canopy.acceptance.result import VerificationResult
from canopy.sampling import Acceptance
from canopy.tree import Forest
from canopy.tree.forest import offsets_of
from canopy_kernels.host_to_device import copy_packed, read_back
from canopy_kernels.sampling.coupled_argmax import coupled_argmax
from canopy_kernels.sampling.filters import Filters, keep_typical
from canopy_kernels.sampling.recursive_rejection import recursive_rejection
from canopy_kernels.sampling.thresholds import launch_row_thresholds
from canopy_kernels.sampling.traversal import traversal
from canopy_kernels.sampling.tree_walk import walk_trees
from canopy_kernels.sampling.trees import ProposalRows, Trees, VerificationResults


class Rule(Enum):
    """Ways to decide a tree."""

    TARGET_DECIDES = 0
    REJECTION = 1
    TRAVERSAL = 2


_RULES = {Acceptance.REJECTION: Rule.REJECTION, Acceptance.TRAVERSAL: Rule.TRAVERSAL}


Arrays = dict[tuple[Rule, str], np.ndarray]
Tensors = dict[tuple[Rule, str], torch.Tensor]


class DeviceAcceptor:
    """`Acceptor` over logits on a device; in Triton's interpreter the CPU is one."""

    def accept(
        self, candidates: Sequence[Candidate], logits: torch.Tensor
    ) -> list[VerificationResult | None]:
        """As `Acceptor.accept`."""
        if not candidates:
            return []
        groups = _groups(candidates)
        arrays: Arrays = {
            (group.rule, name): array for group in groups for name, array in group.arrays().items()
        }
        tensors = copy_packed(arrays, str(logits.device))
        tables = [
            group.decide(
                logits if len(groups) == 1 else logits[tensors[group.rule, "rows"]], tensors
            ).table
            for group in groups
        ]
        width = max(table.shape[1] for table in tables)
        padded = [F.pad(table, (0, width - table.shape[1]), value=-1) for table in tables]
        return _verdicts(groups, read_back(torch.cat(padded)), len(candidates))


@dataclass(frozen=True)
class _Group:
    """The trees that one rule decides."""

    rule: Rule
    members: list[int]  # numbers of the candidates
    candidates: list[Candidate]
    rows: np.ndarray  # int64 [N] of the logits

    def arrays(self) -> dict[str, np.ndarray]:
        """What the kernels read; N nodes of S trees, E entries of proposal rows."""
        trees = [candidate.tree for candidate in self.candidates]
        forest, sizes = Forest.pack(trees), [len(tree.parents) for tree in trees]
        depths = np.concatenate([tree.depths for tree in trees])

        def by_tree(value: Callable[[Candidate], object], dtype: type) -> np.ndarray:
            return np.array([value(candidate) for candidate in self.candidates], dtype)

        temperatures = by_tree(_temperature, np.float32)
        seeds = by_tree(lambda c: c.params.seed, np.uint64).view(np.int64)
        positions = by_tree(lambda c: c.num_tokens, np.int64)
        return {
            "rows": self.rows,
            "node_starts": offsets_of(sizes).astype(np.int32),
            "token_ids": forest.token_ids,
            "parents": forest.parents,
            "temperatures": temperatures.repeat(sizes),
            "top_ks": by_tree(lambda c: c.params.top_k, np.int32).repeat(sizes),
            "top_ps": by_tree(lambda c: c.params.top_p, np.float32).repeat(sizes),
            "min_ps": by_tree(lambda c: c.params.min_p, np.float32).repeat(sizes),
            "typical_ps": by_tree(lambda c: c.params.typical_p, np.float32).repeat(sizes),
            **self._noise(seeds, positions, sizes, depths),
            **self._proposal_rows(),
        }

    def _noise(
        self, seeds: np.ndarray, positions: np.ndarray, sizes: list[int], depths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """By node where every node draws its token, by tree where the kernels count on."""
        if self.rule is not Rule.TARGET_DECIDES:
            return {"seeds": seeds, "positions": positions}
        return {"seeds": seeds.repeat(sizes), "positions": positions.repeat(sizes) + depths}

    def _proposal_rows(self) -> dict[str, np.ndarray]:
        if self.rule is Rule.TARGET_DECIDES:
            return {}
        rows = [row for candidate in self.candidates for row in candidate.rows]
        return {
            "row_starts": offsets_of([len(row.token_ids) for row in rows]).astype(np.int32),
            "row_token_ids": np.concatenate([row.token_ids for row in rows]).astype(np.int32),
            "row_log_probs": np.concatenate([row.log_probs for row in rows]).astype(np.float32),
        }

    def decide(self, logits: torch.Tensor, tensors: Tensors) -> VerificationResults:
        """logits: float32 [N, V]; they are used up."""
        own = {name: tensor for (rule, name), tensor in tensors.items() if rule is self.rule}
        filters = Filters(own["top_ks"], own["top_ps"], own["min_ps"])
        thresholds = launch_row_thresholds(logits, own["temperatures"], filters)
        if any(c.params.typical_p < 1.0 for c in self.candidates):
            thresholds = keep_typical(logits, thresholds, own["typical_ps"])
        trees = Trees(
            own["node_starts"],
            own["token_ids"],
            own["parents"],
            max_nodes=max(len(c.tree.parents) for c in self.candidates),
            max_depth=max(int(c.tree.depths.max()) for c in self.candidates),
        )
        noise = own["seeds"], own["positions"]
        if self.rule is Rule.TARGET_DECIDES:
            return walk_trees(trees, coupled_argmax(logits, thresholds, *noise))
        rows = ProposalRows(
            own["row_starts"], own["row_token_ids"], own["row_log_probs"], self._max_length
        )
        launch = traversal if self.rule is Rule.TRAVERSAL else recursive_rejection
        return launch(trees, rows, logits, thresholds, *noise)

    @property
    def _max_length(self) -> int:
        """Of a proposal row, or the children of a node."""
        lengths = [len(row.token_ids) for c in self.candidates for row in c.rows]
        return max(lengths + [len(nodes) for c in self.candidates for nodes in c.tree.children])


def _groups(candidates: Sequence[Candidate]) -> list[_Group]:
    starts = offsets_of([len(candidate.rows) for candidate in candidates])
    ranges = [np.arange(start, end) for start, end in pairwise(starts)]
    members: dict[Rule, list[int]] = {}
    for index, candidate in enumerate(candidates):
        members.setdefault(_RULES.get(candidate.params.mode, Rule.TARGET_DECIDES), []).append(index)
    return [
        _Group(rule, own, [candidates[i] for i in own], np.concatenate([ranges[i] for i in own]))
        for rule, own in members.items()
    ]


def _verdicts(
    groups: Sequence[_Group], table: np.ndarray, num_candidates: int
) -> list[VerificationResult | None]:
    """table: int32 [S, 2 + depth] of all groups, see sampling.trees.VerificationResults."""
    results: list[VerificationResult | None] = [None] * num_candidates
    members = [member for group in groups for member in group.members]
    for member, (num_accepted, bonus, *path) in zip(members, table.tolist(), strict=True):
        if bonus >= 0:
            results[member] = VerificationResult(path[:num_accepted], bonus)
    return results


def _temperature(candidate: Candidate) -> float:
    is_greedy = candidate.params.mode is Acceptance.GREEDY
    return 0.0 if is_greedy else candidate.params.temperature
