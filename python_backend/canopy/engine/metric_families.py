"""What the engine shows to the world: the one list of metric names, kinds and meanings.

The Triton server's registry and docs/metrics.md are both made from it. A histogram appears as
three counters `_bucket`, `_sum` and `_count`, as Prometheus writes histograms: a bucket of the
server's own kind of histogram can only be updated one observation at a time, some 20 us each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from canopy.engine.histogram import Histogram
from canopy.engine.metrics import STAGES, EngineMetrics

PREFIX = "canopy_"
FAILING_STAGES = ("draft", "tree_builder", "verifier")


class Kind(Enum):
    """Of a family, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Family:
    """`read` gives a number, by the values of `label` where there is one, or a Histogram."""

    name: str  # without the prefix
    kind: Kind
    description: str
    read: Callable[[EngineMetrics], Any]
    label: str = ""


@dataclass(frozen=True)
class Series:
    """One line of the metrics page."""

    family: str  # whole name of what the server calls a family
    kind: Kind  # COUNTER or GAUGE
    description: str
    labels: tuple[tuple[str, str], ...]
    value: float


def _labelled_from_one(counts: list[int]) -> dict[str, int]:
    """Counts of 1, 2, ... where the last one holds everything beyond, too."""
    last = len(counts)
    return {f"{n}+" if n == last else str(n): count for n, count in enumerate(counts, 1)}


_COUNTERS = (
    ("requests", "Requests accepted", lambda m: m.num_requests),
    ("requests_finished", "Requests answered to the end", lambda m: m.num_finished),
    ("requests_failed", "Requests ended by an error", lambda m: m.num_failed),
    ("cancellations", "Requests cancelled or timed out", lambda m: m.num_cancelled),
    ("preemptions", "Sequences that gave back their KV blocks", lambda m: m.num_preempted),
    ("steps", "Passes of the engine loop", lambda m: m.num_steps),
    ("rounds", "Draft-build-verify-commit rounds of sequences", lambda m: m.num_rounds),
    ("drafted_nodes", "Drafted nodes that were verified", lambda m: m.num_drafted_nodes),
    ("accepted_tokens", "Drafted nodes that were accepted", lambda m: m.num_accepted_tokens),
    ("emitted_tokens", "Tokens emitted, after stop rules", lambda m: m.num_emitted_tokens),
    (
        "failed_proposals",
        "Rounds that stayed plain since the drafter failed on the sequence",
        lambda m: m.num_failed_proposals,
    ),
)
_LABELLED_COUNTERS = (
    (
        "accepted_by_depth",
        "depth",
        "Accepted nodes by depth, 1 being a child of the anchor",
        lambda m: _labelled_from_one(m.accepted_by_depth),
    ),
    (
        "accepted_by_rank",
        "rank",
        "Accepted nodes by their place among the siblings verified, 1 being the drafter's first",
        lambda m: _labelled_from_one(m.accepted_by_rank),
    ),
    (
        "stage_seconds",
        "stage",
        "Time spent by stage of the step; `total` is the whole step",
        lambda m: {stage: m.stage_seconds[stage] for stage in STAGES},
    ),
    (
        "stage_failures",
        "stage",
        "Failed calls and restarts by stage",
        lambda m: {stage: m.num_stage_failures.get(stage, 0) for stage in FAILING_STAGES},
    ),
)
_GAUGES = (
    ("running_sequences", "Sequences served every step", lambda m: m.running_sequences),
    ("waiting_sequences", "Requests waiting for a place", lambda m: m.waiting_sequences),
    ("kv_blocks_free", "KV cache blocks free", lambda m: m.free_blocks),
    ("kv_blocks_used", "KV cache blocks in use", lambda m: m.used_blocks),
    ("node_budget", "Drafted nodes a sequence in the last step", lambda m: m.node_budget),
    ("node_price", "Survival that a drafted node must have", lambda m: m.node_price),
    (
        "log_odds_correction",
        "Log-odds that acceptance learned while serving adds to the fitted one; 0 = as fitted",
        lambda m: m.log_odds_correction,
    ),
    ("predicted_verify_ms", "Predicted time of a verify step", lambda m: m.predicted_verify_ms),
    ("measured_verify_ms", "Measured time of the last verify step", lambda m: m.measured_verify_ms),
    (
        "source_failures",
        "Proposal sources missing or failing since the draft stage started",
        lambda m: m.source_failures,
    ),
    ("load_state", "Server load known: 0 fresh, 1 stale, 2 not", lambda m: m.load_state),
)
_HISTOGRAMS = (
    (
        "acceptance_length",
        "Tokens of a round: accepted nodes and the bonus token",
        lambda m: m.acceptance_length,
    ),
    ("queue_seconds", "From a request's arrival to its first step", lambda m: m.queue_s),
    (
        "time_to_first_token_seconds",
        "From a request's arrival to its first token",
        lambda m: m.first_token_s,
    ),
    (
        "inter_token_seconds",
        "Time a token, first ones left out; tokens of one round share its time",
        lambda m: m.inter_token_s,
    ),
    (
        "request_seconds",
        "From a request's arrival to its last token, of those answered to the end",
        lambda m: m.request_s,
    ),
)

# In the order in which they are refreshed: who sees the gauges of an idle engine sees the counters
# of all that it did.
FAMILIES: tuple[Family, ...] = (
    *(Family(f"{name}_total", Kind.COUNTER, text, read) for name, text, read in _COUNTERS),
    *(
        Family(f"{name}_total", Kind.COUNTER, text, read, label)
        for name, label, text, read in _LABELLED_COUNTERS
    ),
    *(Family(name, Kind.HISTOGRAM, text, read) for name, text, read in _HISTOGRAMS),
    *(Family(name, Kind.GAUGE, text, read) for name, text, read in _GAUGES),
)


def read_series(metrics: EngineMetrics) -> Iterator[Series]:
    """Every line of the page as it stands now."""
    for family in FAMILIES:
        value = family.read(metrics)
        if family.kind is Kind.HISTOGRAM:
            yield from _histogram_series(family, value)
        elif family.label:
            for label, own in value.items():
                yield _series(family, own, labels=((family.label, label),))
        else:
            yield _series(family, value)


def _histogram_series(family: Family, histogram: Histogram) -> Iterator[Series]:
    for bound, count in histogram.cumulated():
        yield _series(family, count, "_bucket", (("le", bound),))
    yield _series(family, histogram.sum, "_sum")
    yield _series(family, histogram.count, "_count")


def _series(
    family: Family, value: float, suffix: str = "", labels: tuple[tuple[str, str], ...] = ()
) -> Series:
    kind = Kind.GAUGE if family.kind is Kind.GAUGE else Kind.COUNTER
    return Series(f"{PREFIX}{family.name}{suffix}", kind, family.description, labels, value)
