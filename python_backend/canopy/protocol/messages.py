"""What the stages say to each other: one dataclass per message.

Every field is one flat array; ragged fields stand beside the field that holds their lengths.
S sequences, F finished, N started; "nodes" = sum(num_nodes + 1), the anchors included
(canopy.tree.forest). This is the only list: `pack` and `unpack` follow it.

A message crosses a process border as ONE tensor of bytes, since the server charges for every
tensor (about 40 us there and back):

    int64 element count of each field | field | field | ...      each begins at a multiple of 8

Node numbers are local to a sequence, the anchor being 0. A proposal row is the drafter's sparse,
renormalized next-token distribution at a node: the distribution its children were drawn from.
An empty row means that the children of the node are deterministic (point masses).
"""

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

M = TypeVar("M")


def _array(dtype: type) -> Any:
    empty: np.ndarray = np.zeros(
        0, dtype
    )  # one for all messages: it has nothing that could be changed
    return field(default_factory=lambda: empty, metadata={"dtype": empty.dtype})


@dataclass
class SequenceChanges:
    """Which sequences a stage has to take up or drop before it serves this step.

    A started sequence brings every token known so far (prompt, and what was emitted when it was
    preempted or the stage was restarted). Starting a known id replaces it; finishing an unknown
    id does nothing.
    """

    finished_ids: np.ndarray = _array(np.int64)  # [F]
    started_ids: np.ndarray = _array(np.int64)  # [N]
    started_lengths: np.ndarray = _array(np.int32)  # [N] tokens known so far
    started_token_ids: np.ndarray = _array(np.int32)  # [sum(started_lengths)]
    started_num_emitted: np.ndarray = _array(np.int32)  # [N] how many of them were emitted
    started_max_tokens: np.ndarray = _array(np.int32)  # [N] cap of emitted tokens
    started_min_tokens: np.ndarray = _array(np.int32)  # [N]
    started_seeds: np.ndarray = _array(np.uint64)  # [N]
    started_temperatures: np.ndarray = _array(np.float32)  # [N] 0 = greedy
    started_top_ks: np.ndarray = _array(np.int32)  # [N] 0 = off
    started_top_ps: np.ndarray = _array(np.float32)  # [N]
    started_min_ps: np.ndarray = _array(np.float32)  # [N]
    started_typical_ps: np.ndarray = _array(np.float32)  # [N]
    started_repetition_penalties: np.ndarray = _array(np.float32)  # [N]
    started_presence_penalties: np.ndarray = _array(np.float32)  # [N]
    started_frequency_penalties: np.ndarray = _array(np.float32)  # [N]
    started_logprobs: np.ndarray = _array(np.int32)  # [N]
    started_prompt_logprobs: np.ndarray = _array(np.int32)  # [N]
    started_acceptances: np.ndarray = _array(np.int32)  # [N] sampling.Acceptance
    started_policies: np.ndarray = _array(np.int32)  # [N] sampling.PolicyName
    started_node_budgets: np.ndarray = _array(np.int32)  # [N]
    started_num_stops: np.ndarray = _array(np.int32)  # [N] lengths of the stop lists
    started_stop_token_ids: np.ndarray = _array(np.int32)  # [sum(started_num_stops)]
    started_num_biases: np.ndarray = _array(np.int32)  # [N]
    started_bias_token_ids: np.ndarray = _array(np.int32)  # [sum(started_num_biases)]
    started_biases: np.ndarray = _array(np.float32)  # [sum(started_num_biases)]
    started_num_allowed: np.ndarray = _array(np.int32)  # [N]
    started_allowed_token_ids: np.ndarray = _array(np.int32)  # [sum(started_num_allowed)]
    started_num_bad_words: np.ndarray = _array(np.int32)  # [N]
    started_bad_word_lengths: np.ndarray = _array(np.int32)  # [sum(started_num_bad_words)]
    started_bad_words_ids: np.ndarray = _array(np.int32)  # [sum(started_bad_word_lengths)]
    started_grammar_lengths: np.ndarray = _array(np.int32)  # [N]
    started_grammars: np.ndarray = _array(np.uint8)  # [sum(started_grammar_lengths)] UTF-8


@dataclass
class DraftRequest(SequenceChanges):
    """Propose a tree for each of S sequences."""

    updated_ids: np.ndarray = _array(np.int64)  # [U] known sequences that grew
    updated_lengths: np.ndarray = _array(np.int32)  # [U]
    updated_token_ids: np.ndarray = _array(np.int32)  # [sum(updated_lengths)]
    sequence_ids: np.ndarray = _array(np.int64)  # [S]
    max_depths: np.ndarray = _array(np.int32)  # [S] deepest node that can still be emitted
    # [1] as in BuildReply, or empty; ignored by policies whose nodes have no price.
    least_survival: np.ndarray = _array(np.float32)
    # States of positions computed since the last draft, as in VerifyReply; [G] sequences.
    hidden_state_ids: np.ndarray = _array(np.int64)  # [G]
    hidden_state_starts: np.ndarray = _array(np.int32)  # [G] position of the first
    hidden_state_lengths: np.ndarray = _array(np.int32)  # [G] positions
    hidden_states: np.ndarray = _array(np.float16)  # [sum(hidden_state_lengths) * taps * E]


UNKNOWN_ANCHOR = -1


@dataclass
class DraftReply:
    """One proposal per sequence, in the order asked: a superset of the tree to verify.

    A sequence that the stage does not know brings the anchor UNKNOWN_ANCHOR: start it again.
    """

    num_nodes: np.ndarray = _array(np.int32)  # [S]
    token_ids: np.ndarray = _array(np.int32)  # [nodes]
    parents: np.ndarray = _array(np.int32)  # [nodes]
    # [nodes] log of the edge's estimated acceptance, at most 0; 0 at the anchor. Where children
    # are drawn it is a bound known before the draw, so a policy that reads it cannot bias.
    log_probs: np.ndarray = _array(np.float32)
    entropies: np.ndarray = _array(np.float32)  # [nodes] bits, of the whole next-token conditional
    row_lengths: np.ndarray = _array(np.int32)  # [nodes]
    row_token_ids: np.ndarray = _array(np.int32)  # [sum(row_lengths)]
    row_log_probs: np.ndarray = _array(np.float32)  # [sum(row_lengths)] each row sums to 1
    num_failed: np.ndarray = _array(np.int32)  # [1] sequences that the drafter failed on
    num_source_failures: np.ndarray = _array(np.int32)  # [1] since the stage started


@dataclass
class BuildRequest:
    """Choose the tree of every sequence out of its proposal."""

    num_nodes: np.ndarray = _array(np.int32)  # [S]
    parents: np.ndarray = _array(np.int32)  # [nodes]
    log_probs: np.ndarray = _array(np.float32)  # [nodes]
    entropies: np.ndarray = _array(np.float32)  # [nodes]
    policies: np.ndarray = _array(np.int32)  # [S] sampling.PolicyName
    node_budgets: np.ndarray = _array(np.int32)  # [S]
    acceptances: np.ndarray = _array(np.int32)  # [S] sampling.Acceptance
    num_running: np.ndarray = _array(np.int32)  # [1]
    num_waiting: np.ndarray = _array(np.int32)  # [1]
    num_prompt_tokens: np.ndarray = _array(np.int32)  # [1] of running sequences, at most to compute
    num_free_blocks: np.ndarray = _array(np.int32)  # [1]
    # The step before this one; no sequences = it tells nothing, as when a prompt was computed.
    last_counts: np.ndarray = _array(np.int32)  # [3] sequences, nodes drafted, nodes accepted
    last_times_ms: np.ndarray = _array(np.float32)  # [3] verify, draft, the whole step


@dataclass
class BuildReply:
    """The chosen nodes, ascending and closed under ancestors, the anchor not named."""

    num_selected: np.ndarray = _array(np.int32)  # [S]
    selected: np.ndarray = _array(np.int32)  # [sum(num_selected)]
    draft_next: np.ndarray = _array(np.int32)  # [1] steps until the next draft; 1 = the coming one
    price: np.ndarray = _array(np.float32)  # [1] price of a node: the survival that it must have
    log_odds_correction: np.ndarray = _array(
        np.float32
    )  # [1] log-odds added to the acceptances, as learned
    # [1] survival, by the log_probs of a proposal, below which a price like this one keeps no node
    least_survival: np.ndarray = _array(np.float32)
    predicted_ms: np.ndarray = _array(np.float32)  # [1] of verifying these trees
    load_state: np.ndarray = _array(np.int32)  # [1] policy.load.LoadState
    num_failed: np.ndarray = _array(np.int32)  # [1] proposals that could not be read
    # What decided these trees, for steps of the same sequences; see tree_builder/cached.py.
    price_ttl_steps: np.ndarray = _array(
        np.int32
    )  # [1] steps that it holds for; 1 = this one alone
    goodput: np.ndarray = _array(np.float32)  # [1] Theta, tokens a ms, as a step is weighed
    non_verify_ms: np.ndarray = _array(np.float32)  # [1] of a step, beside verifying
    costs_ms: np.ndarray = _array(np.float32)  # [n] of a step with 0, 1, ... nodes


@dataclass
class VerifyRequest(SequenceChanges):
    """One target forward over S trees, oldest sequence first.

    A sequence whose prompt is not computed yet brings its anchor alone. Rows are sent for the
    acceptance modes that draw children.
    """

    # [1] prompt tokens to compute in this step, at most; empty: as many as the stage itself takes
    max_prompt_rows: np.ndarray = _array(np.int32)
    sequence_ids: np.ndarray = _array(np.int64)  # [S]
    num_nodes: np.ndarray = _array(np.int32)  # [S]
    token_ids: np.ndarray = _array(np.int32)  # [nodes]
    parents: np.ndarray = _array(np.int32)  # [nodes]
    row_lengths: np.ndarray = _array(np.int32)  # [nodes]
    row_token_ids: np.ndarray = _array(np.int32)  # [sum(row_lengths)]
    row_log_probs: np.ndarray = _array(np.float32)  # [sum(row_lengths)]


class Status(IntEnum):
    """What became of a sequence in a verify step."""

    DECODED = 0  # emitted at least one token
    PREFILLING = 1  # part of the prompt was computed, or it waits for its share of the step
    PREEMPTED = 2  # its blocks were taken back: start it again later
    UNKNOWN = 3  # the verifier does not know the id: start it again now
    FAILED = 4  # it cannot go on: what it brings, or its logits, allow no next token


class Finish(IntEnum):
    """Why the verifier cut a sequence's tokens; stop strings are found by the engine."""

    NONE = 0
    STOP = 1  # the last emitted token is one of its stop tokens
    LENGTH = 2  # the cap of emitted tokens is reached


@dataclass
class VerifyReply:
    """What every sequence gained, and the cache's state."""

    status: np.ndarray = _array(np.int32)  # [S] Status
    finish: np.ndarray = _array(np.int32)  # [S] Finish
    num_emitted: np.ndarray = _array(np.int32)  # [S] accepted path + bonus, cut at the first stop
    emitted_token_ids: np.ndarray = _array(np.int32)  # [sum(num_emitted)]
    num_accepted: np.ndarray = _array(np.int32)  # [S] drafted nodes kept
    num_cached_tokens: np.ndarray = _array(np.int32)  # [S] prompt tokens reused when it was started
    num_free_blocks: np.ndarray = _array(np.int32)  # [1]
    num_used_blocks: np.ndarray = _array(np.int32)  # [1]
    # UTF-8, why each sequence failed; empty fields where none did.
    failure_lengths: np.ndarray = _array(np.int32)  # [S]
    failures: np.ndarray = _array(np.uint8)  # [sum(failure_lengths)]
    # Log-probs of emitted tokens, and of the prompt's tokens from a position on; empty fields where
    # nobody asks. See canopy.protocol.logprobs: W is 1 + the likeliest tokens that are told.
    logprob_lengths: np.ndarray = _array(np.int32)  # [S] tokens
    logprob_widths: np.ndarray = _array(np.int32)  # [S] W
    logprob_token_ids: np.ndarray = _array(np.int32)  # [sum(lengths * W)]
    logprobs: np.ndarray = _array(np.float32)  # [sum(lengths * W)]
    logprob_ranks: np.ndarray = _array(np.int32)  # [sum(lengths)]
    prompt_logprob_starts: np.ndarray = _array(np.int32)  # [S] position of the first token
    prompt_logprob_lengths: np.ndarray = _array(np.int32)
    prompt_logprob_widths: np.ndarray = _array(np.int32)
    prompt_logprob_token_ids: np.ndarray = _array(np.int32)
    prompt_logprobs: np.ndarray = _array(np.float32)
    prompt_logprob_ranks: np.ndarray = _array(np.int32)
    # Hidden states of positions that this step computed and the sequence keeps; empty fields
    # where no drafter reads them.
    hidden_state_starts: np.ndarray = _array(np.int32)  # [S] position of the first
    hidden_state_lengths: np.ndarray = _array(np.int32)  # [S] positions
    hidden_states: np.ndarray = _array(np.float16)  # [sum(hidden_state_lengths) * taps * E]
    feature_window: np.ndarray = _array(np.int32)  # [1] positions that the drafter looks back


# Kept, since they are asked for with every message.
_fields_of: dict[type, dict[str, np.dtype]] = {}
_empty_of: dict[type, dict[str, np.ndarray]] = {}


def array_fields(kind: type) -> dict[str, np.dtype]:
    """Field names and dtypes of a message class, in order."""
    if kind not in _fields_of:
        _fields_of[kind] = {f.name: f.metadata["dtype"] for f in fields(kind)}
    return _fields_of[kind]


def pack(message: Any) -> np.ndarray:
    """The bytes [size] of a message."""
    counts, parts = [], []
    for name, dtype in array_fields(type(message)).items():
        array = getattr(message, name)
        counts.append(len(array))
        if len(array):
            parts.append(np.asarray(array, dtype).tobytes())
            parts.append(bytes(-len(parts[-1]) % 8))
    header = np.array(counts, np.int64).tobytes()
    return np.frombuffer(b"".join((header, *parts)), np.uint8)


def unpack(kind: type[M], packed: np.ndarray) -> M:
    """The message in bytes [size]; its arrays are views. Raises ValueError when it is another."""
    dtypes = array_fields(kind)
    offset = 8 * len(dtypes)
    counts = packed[:offset].view(np.int64).tolist()
    views = _empty_arrays(kind)
    for (name, dtype), count in zip(dtypes.items(), counts, strict=True):
        size = count * dtype.itemsize
        if not 0 <= size <= len(packed) - offset:
            raise _not_a(kind, packed)
        if count:
            views[name] = np.frombuffer(packed, dtype, count, offset)
        offset += -(-size // 8) * 8
    if offset != len(packed):
        raise _not_a(kind, packed)
    return kind(**views)


def _empty_arrays(kind: type) -> dict[str, np.ndarray]:
    if kind not in _empty_of:
        _empty_of[kind] = dict(vars(kind()))
    return _empty_of[kind].copy()


def _not_a(kind: type, packed: np.ndarray) -> ValueError:
    return ValueError(f"{len(packed)} bytes are no {kind.__name__}")
