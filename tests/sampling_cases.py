"""Random forests with proposal rows and logits, for the tests of the sampling kernels."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from kernel_interpreter import DEVICE

from canopy.acceptance import accept, draft_noise, draw_children
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, Forest, ProposalRow
from canopy_kernels.sampling.filters import Filters, row_thresholds
from canopy_kernels.sampling.trees import ProposalRows, Trees


@dataclass
class Case:
    """Sequences with what the drafter and the target say about each of their nodes."""

    trees: list[DraftTree]
    rows: list[list[ProposalRow]]
    logits: list[np.ndarray]  # float32 [nodes, V] per sequence
    seeds: list[int]
    num_tokens: list[int]

    @property
    def device_trees(self) -> Trees:
        forest = Forest.pack(self.trees)
        return Trees(
            to_device(np.cumsum([0, *(forest.num_nodes + 1)]).astype(np.int32)),
            to_device(forest.token_ids),
            to_device(forest.parents),
            max_nodes=int(forest.num_nodes.max()) + 1,
            max_depth=max(int(tree.depths.max()) for tree in self.trees),
        )

    @property
    def device_rows(self) -> ProposalRows:
        rows = [row for rows in self.rows for row in rows]
        lengths = [len(row.token_ids) for row in rows]
        num_children = [len(c) for tree in self.trees for c in tree.children]
        return ProposalRows(
            to_device(np.cumsum([0, *lengths]).astype(np.int32)),
            to_device(np.concatenate([row.token_ids for row in rows])),
            to_device(np.concatenate([row.log_probs for row in rows])),
            max_length=max(lengths + num_children),
        )

    @property
    def device_logits(self) -> torch.Tensor:
        return to_device(np.concatenate(self.logits))

    @property
    def device_seeds(self) -> torch.Tensor:
        return to_device(np.array(self.seeds, np.uint64).view(np.int64))

    @property
    def device_positions(self) -> torch.Tensor:
        return to_device(np.array(self.num_tokens))

    def expected(self, verdicts) -> torch.Tensor:
        """The table of what `canopy.acceptance` decided."""
        table = torch.full((len(self.trees), 2 + self.device_trees.max_depth), -1)
        for row, verdict in zip(table, verdicts, strict=True):
            row[: 2 + len(verdict.path)] = torch.tensor(
                [len(verdict.path), verdict.bonus, *verdict.path]
            )
        return table.int()


def to_device(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def thresholds_of(
    logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
) -> torch.Tensor:
    """The same sampling parameters at every row."""

    def column(value, dtype=torch.float32):
        return torch.full((len(logits),), value, dtype=dtype, device=DEVICE)

    filters = Filters(column(top_k, torch.int32), column(top_p), column(min_p))
    has_filters = (top_k, top_p, min_p) != (0, 1.0, 0.0)
    return row_thresholds(logits, column(temperature), filters if has_filters else None)


def random_case(num_sequences: int, vocab_size: int, seed: int) -> Case:
    """Trees up to three levels deep; children drawn from their row, or deterministic."""
    generator = np.random.default_rng([seed, vocab_size])
    seeds = [int(word) for word in generator.integers(0, 2**64, num_sequences, np.uint64)]
    num_tokens = generator.integers(1, 5000, num_sequences).tolist()
    case = Case([], [], [], seeds, num_tokens)
    for request_seed, length in zip(seeds, num_tokens, strict=True):
        tree, rows = _grow(generator, vocab_size, request_seed, length)
        logits = generator.normal(size=(len(rows), vocab_size)).astype(np.float32)
        for node, row in enumerate(rows):  # so that a child has a chance
            logits[node, row.token_ids] += np.float32(np.log(vocab_size))
        case.trees.append(tree)
        case.rows.append(rows)
        case.logits.append(logits)
    return case


def _grow(generator, vocab_size: int, request_seed: int, num_tokens: int):
    token_ids, parents, depths, rows = [0], [-1], [0], []
    while len(rows) < len(token_ids):
        node = len(rows)
        row = _random_row(generator, vocab_size)
        width = int(generator.integers(0, 4)) if depths[node] < 3 else 0
        if generator.random() < 0.3:
            row = ProposalRow.empty()
            children = generator.permutation(vocab_size)[:width]
        else:
            noise = draft_noise(request_seed, num_tokens + depths[node], node)
            children = draw_children(row, width, noise)
        rows.append(row)
        token_ids += [int(token) for token in children]
        parents += [node] * len(children)
        depths += [depths[node] + 1] * len(children)
    return DraftTree(np.array(token_ids, np.int32), np.array(parents, np.int32)), rows


def _random_row(generator, vocab_size: int) -> ProposalRow:
    length = int(generator.integers(1, min(vocab_size, 6) + 1))
    token_ids = generator.permutation(vocab_size)[:length].astype(np.int32)
    probs = generator.dirichlet(np.ones(length))
    return ProposalRow(token_ids, np.log(probs).astype(np.float32))


def arguments(case: Case, **params):
    """What the launchers of the ratio rules take."""
    logits = case.device_logits
    thresholds = thresholds_of(logits, **params)
    return (
        case.device_trees,
        case.device_rows,
        logits,
        thresholds,
        case.device_seeds,
        case.device_positions,
    )


def accepted(case: Case, acceptance: Acceptance, **params) -> torch.Tensor:
    """The verdicts of canopy.acceptance."""
    sampling = SamplingParams(acceptance=acceptance, **params)
    sequences = zip(case.trees, case.rows, case.logits, case.seeds, case.num_tokens, strict=True)
    return case.expected(
        accept(tree, rows, logits, replace(sampling, seed=seed), num_tokens)
        for tree, rows, logits, seed, num_tokens in sequences
    )


def single(token_ids, parents, rows, logits) -> Case:
    """One sequence."""
    tree = DraftTree(np.array(token_ids, np.int32), np.array(parents, np.int32))
    return Case([tree], [rows], [np.array(logits, np.float32)], [5], [3])
