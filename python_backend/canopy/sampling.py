"""How one sequence is to be sampled: the part of a request that the stages need."""

from dataclasses import dataclass, replace
from enum import IntEnum

MAX_TEMPERATURE = 100.0
MAX_NODE_BUDGET = 256
MAX_PENALTY = 100.0
MAX_LOGPROBS = 20
MAX_BIAS = 1e4
LEAST_FLOAT32 = 2.0**-126  # the smallest that every device tells from 0
_MAX_INT32 = 2**31 - 1

# What each number may be, both ends included; NaN is in no range.
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, MAX_TEMPERATURE),
    "top_k": (0, _MAX_INT32),
    "top_p": (LEAST_FLOAT32, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (LEAST_FLOAT32, 1.0),
    "repetition_penalty": (LEAST_FLOAT32, MAX_PENALTY),
    "presence_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "logprobs": (-1, MAX_LOGPROBS),
    "prompt_logprobs": (-1, MAX_LOGPROBS),
    "seed": (0, 2**64 - 1),
    "max_tokens": (1, _MAX_INT32),
    "min_tokens": (0, _MAX_INT32),
    "node_budget": (0, MAX_NODE_BUDGET),
}


class Acceptance(IntEnum):
    """The acceptance modes, by the number that crosses process borders."""

    GREEDY = 0
    COUPLED = 1
    REJECTION = 2
    TARGET_ONLY = 3
    TRAVERSAL = 4

    @property
    def draws_children(self) -> bool:
        """Children are drawn from the drafter's row; shape decisions must not read the draw."""
        return self in (Acceptance.REJECTION, Acceptance.TRAVERSAL)


class PolicyName(IntEnum):
    """Tree policies, by the number that crosses process borders; OFF is plain decoding."""

    OFF = 0
    CHAIN = 1
    UNIFORM = 2
    THRESHOLD = 3
    TOPN = 4
    ENTROPY = 5
    STATIC_OPTIMAL = 6
    SURVIVAL = 7
    PRICED = 8

    @property
    def is_calibrated(self) -> bool:
        """Nodes are weighed by calibrated acceptance, and not by the drafter's own scores."""
        return self in (PolicyName.SURVIVAL, PolicyName.PRICED)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling, speculation and limits of one sequence.

    temperature 0 means greedy. top_k 0, top_p 1, min_p 0 and typical_p 1 switch the filter off.
    `max_tokens` and `min_tokens` count emitted tokens; no token of `stop_token_ids`
    (end-of-sequence included unless ignored) is sampled before `min_tokens` were emitted. What
    penalties, bias, bad words and allowed tokens do is told in canopy.logits_processors. Raises
    ValueError for a number outside its range: what exists can be sampled, and fits the messages.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id and what is added to its logit
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # token sequences that are never completed
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    grammar: str = ""  # of canopy.grammar.structured_output; empty: any text
    logprobs: int = -1  # likeliest tokens told with each emitted one; -1: not even its own
    prompt_logprobs: int = -1  # the same with each prompt token
    seed: int = 0  # unsigned 64 bit
    max_tokens: int = 256
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    acceptance: Acceptance = Acceptance.GREEDY
    policy: PolicyName = PolicyName.OFF
    node_budget: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} = {value} lies outside {least} to {most}")
        for name in ("stop_token_ids", "allowed_token_ids"):
            if not all(0 <= token_id <= _MAX_INT32 for token_id in getattr(self, name)):
                raise ValueError(f"a token of {name} lies outside every vocabulary")
        for token_id, bias in self.logit_bias:
            if not (0 <= token_id <= _MAX_INT32 and -MAX_BIAS <= bias <= MAX_BIAS):
                raise ValueError(f"logit_bias {token_id}: {bias} lies outside its range")
        if not all(self.bad_words_ids):
            raise ValueError("a bad word has no tokens")

    @property
    def mode(self) -> Acceptance:
        """The acceptance mode that decides: at temperature 0 it is greedy whatever was named."""
        return self.acceptance if self.temperature > 0.0 else Acceptance.GREEDY

    @property
    def has_penalties(self) -> bool:
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    @property
    def changes_logits(self) -> bool:
        """Whether logits depend on anything but the target; see canopy.logits_processors."""
        lists = (self.logit_bias, self.bad_words_ids, self.allowed_token_ids, self.grammar)
        is_minimum = self.min_tokens > 0 and bool(self.stop_token_ids)
        return self.has_penalties or is_minimum or any(lists)

    def without_speculation(self) -> "SamplingParams":
        """The same sampling, decoded one token a round."""
        return replace(self, policy=PolicyName.OFF, node_budget=0)
