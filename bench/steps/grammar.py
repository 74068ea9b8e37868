"""What structured output costs: compiling a grammar, and one mask per node of a tree.

Each library compiles each grammar for the target's vocabulary and for a synthetic one of 128,256
tokens (the target's, and pairs of them joined). It then follows a text that matches. At every
token it masks a chain of the next drafted tokens and takes them back, as the verifier does:

    compile_ms     of a grammar that was not seen before
    mask_us        per node, tokens taken and taken back included: mean and largest step

xgrammar is measured where it is installed; it is no dependency.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from time import perf_counter
from typing import Any, Protocol

import llguidance
import numpy as np
import tokenizers

from bench.harness.benchmark import Benchmark, Options, Record, Result
from canopy.grammar.compiler import GrammarCompiler, make_vocabulary
from canopy.grammar.matcher import GrammarMatcher
from canopy.grammar.structured_output import grammar_of
from canopy.model_store.folders import model_folder, with_model_folders
from canopy.progress import phase_bars

SYNTHETIC_SIZE = 128_256
NUM_NODES, QUICK_NODES = 16, 4
_TEXT = {
    "name": "Anne Example",
    "age": 42,
    "tags": ["first", "second one"],
    "address": {"street": "12 Long Road", "zip": "12345"},
    "kind": "gamma",
}
_ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string"},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
    },
    "required": ["street", "zip"],
    "additionalProperties": False,
}
_PROPERTIES = {
    "name": {"type": "string"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    "address": _ADDRESS,
    "kind": {"enum": ["alpha", "beta", "gamma"]},
}
_SCHEMA = {
    "type": "object",
    "properties": _PROPERTIES,
    "required": list(_PROPERTIES),
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "schema": {"json": _SCHEMA},
    "json_object": {"json_object": True},
    "regex": {"regex": r"\{.*\}"},
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens as bytes, and their tokenizer as far as texts of the benchmark need one."""

    name: str
    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    encode: Callable[[str], list[int]]


class Masker(Protocol):
    """A library's matcher of one sequence."""

    def mask_chain(self, token_ids: Sequence[int]) -> None:
        """Mask the node before these tokens and those of each, and forget the tokens."""
        ...

    def commit(self, token_id: int) -> None:
        """Take a token for good."""
        ...


class _Llguidance:
    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher

    def mask_chain(self, token_ids: Sequence[int]) -> None:
        self._matcher.masks([token_ids[:end] for end in range(len(token_ids) + 1)])

    def commit(self, token_id: int) -> None:
        self._matcher.commit([token_id])


class _Xgrammar:
    def __init__(self, matcher: Any, masks: Any) -> None:
        self._matcher, self._masks = matcher, masks

    def mask_chain(self, token_ids: Sequence[int]) -> None:
        self._matcher.fill_next_token_bitmask(self._masks, 0)
        for node, token_id in enumerate(token_ids, 1):
            self._matcher.accept_token(token_id)
            self._matcher.fill_next_token_bitmask(self._masks, node)
        self._matcher.rollback(len(token_ids))

    def commit(self, token_id: int) -> None:
        self._matcher.accept_token(token_id)


def run(options: Options) -> Result:
    """Raises InvalidDeployment when the target's tokenizer cannot be used."""
    with phase_bars() as progress:
        target = with_model_folders(options.deployment, progress).target
    path = model_folder(target.model) / "tokenizer.json"
    own = _own_vocabulary(tokenizers.Tokenizer.from_file(str(path)))
    num_nodes = QUICK_NODES if options.is_quick else NUM_NODES
    records = [
        record
        for vocabulary in (own, _synthetic(own))
        for record in _records(vocabulary, num_nodes)
    ]
    figures = {
        f"{r['library']}_{r['vocabulary']}_{r['grammar']}_{key}": r[key]
        for r in records
        for key in ("compile_ms", "mask_us")
    }
    return Result(figures, {f"chains of {num_nodes} nodes": records})


def _records(vocabulary: Vocabulary, num_nodes: int) -> Iterator[Record]:
    text = vocabulary.encode(json.dumps(_TEXT))
    for name, make in _libraries(vocabulary, num_nodes):
        for grammar in GRAMMARS:
            start = perf_counter()
            masker = make(grammar)
            compile_s = perf_counter() - start
            times = list(_step_times(masker, text, num_nodes))
            yield {
                "library": name,
                "vocabulary": vocabulary.name,
                "grammar": grammar,
                "compile_ms": compile_s * 1e3,
                "mask_us": mean(times) * 1e6,
                "largest_mask_us": max(times) * 1e6,
            }


def _step_times(masker: Masker, text: Sequence[int], num_nodes: int) -> Iterator[float]:
    """Seconds per node, of each step."""
    for done, token_id in enumerate(text):
        drafted = text[done : done + num_nodes]
        start = perf_counter()
        masker.mask_chain(drafted)
        yield (perf_counter() - start) / (len(drafted) + 1)
        masker.commit(token_id)


def _libraries(
    vocabulary: Vocabulary, num_nodes: int
) -> Iterator[tuple[str, Callable[[str], Masker]]]:
    compiler = GrammarCompiler(_llguidance_vocabulary(vocabulary))
    yield "llguidance", lambda name: _Llguidance(compiler.matcher(grammar_of(GRAMMARS[name])))
    try:
        import xgrammar
    except ImportError:
        return
    tokens = list(vocabulary.tokens)
    for token_id in vocabulary.special_token_ids:
        tokens[token_id] = b""  # so that it is in no text
    info = xgrammar.TokenizerInfo(
        tokens, xgrammar.VocabType.RAW, stop_token_ids=[vocabulary.eos_token_id]
    )
    peer = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    masks = xgrammar.allocate_token_bitmask(num_nodes + 1, len(tokens))
    compiled: dict[str, Callable[[], Any]] = {
        "schema": lambda: peer.compile_json_schema(json.dumps(_SCHEMA)),
        "json_object": lambda: peer.compile_json_schema('{"type": "object"}'),
        "regex": lambda: peer.compile_regex(GRAMMARS["regex"]["regex"]),
    }
    yield "xgrammar", lambda name: _Xgrammar(xgrammar.GrammarMatcher(compiled[name]()), masks)


class _Wrapped:
    """A vocabulary in the form that llguidance takes where there is no tokenizer.json."""

    bos_token_id = unk_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.eos_token_id
        self.special_token_ids = vocabulary.special_token_ids
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


def _llguidance_vocabulary(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Wrapped(vocabulary)))


def _own_vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    size = tokenizer.get_vocab_size()
    added = tokenizer.get_added_tokens_decoder()
    special = sorted(token_id for token_id, token in added.items() if token.special)
    eos = special[-1]  # which one ends a text does not matter here
    library = make_vocabulary(tokenizer.to_str(), size, [eos])
    return Vocabulary(
        name="target",
        tokens=[
            added[i].content.encode() if i in added else library.decode_bytes([i])
            for i in range(size)
        ],
        special_token_ids=special,
        eos_token_id=eos,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
    )


def _synthetic(own: Vocabulary) -> Vocabulary:
    """The tokens of `own`, and pairs of them as one token, up to `SYNTHETIC_SIZE`."""
    random = np.random.default_rng(0)
    special = set(own.special_token_ids)
    plain = [token for i, token in enumerate(own.tokens) if i not in special]
    tokens = dict.fromkeys(own.tokens)
    while len(tokens) < SYNTHETIC_SIZE:
        first, second = random.integers(len(plain), size=2)
        tokens.setdefault(plain[first] + plain[second].lstrip())
    return Vocabulary(
        "synthetic", list(tokens), own.special_token_ids, own.eos_token_id, own.encode
    )


BENCHMARK = Benchmark(
    "grammar", "cost of structured output: compiling a grammar, and a mask per node of a tree", run
)
