"""End-to-end rates of a verifier: scheduling, forward, acceptance and commit of every round.

Greedy text of a random model is computed once, plainly. The second time each round is offered a
tree that holds the next `num_right` tokens of that text among others, so that the rate of a known
acceptance length is measured, whatever a drafter would bring.
"""

import time
from dataclasses import dataclass, field

import numpy as np

from bench.gpu.kernel_cases import BLOCK_SIZE
from canopy.config import CacheConfig
from canopy.models.decoder import Decoder
from canopy.protocol.messages import Finish, Status, VerifyReply, VerifyRequest
from canopy.protocol.proposals import pack_rows
from canopy.protocol.sequence_updates import StartedSequence, pack_started
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, Forest, ProposalRow
from canopy.tree.forest import split_ragged
from canopy.verifier.stage import TargetVerifier


@dataclass(frozen=True)
class Load:
    """`num_sequences` prompts, each continued by `num_tokens` tokens."""

    num_sequences: int
    prompt_length: int
    num_tokens: int
    num_nodes: int = 16  # drafted nodes of a tree
    num_right: int = 3  # of them, one below the other

    @property
    def cache(self) -> CacheConfig:
        longest = self.prompt_length + self.num_tokens + self.num_nodes + BLOCK_SIZE
        return CacheConfig(self.num_sequences * longest, BLOCK_SIZE, prefix_reuse=False)


@dataclass
class _Text:
    prompt: list[int]
    emitted: list[int] = field(default_factory=list)
    is_started: bool = False
    is_finished: bool = False


@dataclass(frozen=True)
class Served:
    """What serving a load took, prompts aside."""

    texts: list[list[int]]
    seconds: float
    num_rounds: int  # of all sequences
    num_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def acceptance_length(self) -> float:
        return self.num_tokens / self.num_rounds


def serve(decoder: Decoder, load: Load, to_come: list[list[int]] | None = None) -> Served:
    """Plainly, or with trees that hold the text to come."""
    vocab_size = decoder.config.vocab_size
    random = np.random.default_rng(0)
    prompts = random.integers(vocab_size, size=(load.num_sequences, load.prompt_length))
    texts = [_Text(prompt.tolist()) for prompt in prompts]
    verifier = TargetVerifier(decoder, load.cache, load.num_sequences * load.prompt_length)
    _step(verifier, texts, load, None)  # computes the prompts
    num_before = sum(len(text.emitted) for text in texts)
    num_rounds, start = 0, time.perf_counter()
    while any(not text.is_finished for text in texts):
        num_rounds += sum(not text.is_finished for text in texts)
        _step(verifier, texts, load, to_come)
    seconds = time.perf_counter() - start
    emitted = [text.emitted for text in texts]
    return Served(emitted, seconds, num_rounds, sum(map(len, emitted)) - num_before)


def _step(
    verifier: TargetVerifier, texts: list[_Text], load: Load, to_come: list[list[int]] | None
) -> None:
    running = [i for i, text in enumerate(texts) if not text.is_finished]
    trees = [_tree(texts[i], load, to_come[i] if to_come else None) for i in running]
    reply = verifier.verify(_request(texts, running, trees, load))
    _follow(texts, running, reply)


def _tree(text: _Text, load: Load, to_come: list[int] | None) -> DraftTree:
    """The anchor alone, or the right path with wrong siblings all along it."""
    anchor = (text.prompt + text.emitted)[-1]
    if to_come is None:
        return DraftTree.of_anchor(anchor)
    right = to_come[len(text.emitted) :][: load.num_right]
    tokens, parents = [anchor, *right], [-1, *range(len(right))]
    while len(tokens) <= load.num_nodes:
        parent = len(tokens) % (len(right) + 1)
        tokens.append(_unlike(tokens, parents, parent))
        parents.append(parent)
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))


def _unlike(tokens: list[int], parents: list[int], parent: int) -> int:
    """The least token that no child of `parent` has."""
    taken = {token for token, of in zip(tokens, parents, strict=True) if of == parent}
    return next(token for token in range(len(taken) + 1) if token not in taken)


def _request(
    texts: list[_Text], running: list[int], trees: list[DraftTree], load: Load
) -> VerifyRequest:
    forest = Forest.pack(trees)
    params = SamplingParams(temperature=0.0, max_tokens=load.num_tokens)
    started = [
        StartedSequence(i, np.array(texts[i].prompt, np.int32), 0, params)
        for i in running
        if not texts[i].is_started
    ]
    return VerifyRequest(
        finished_ids=np.array([], np.int64),
        **pack_started(started),
        sequence_ids=np.array(running, np.int64),
        num_nodes=forest.num_nodes,
        token_ids=forest.token_ids,
        parents=forest.parents,
        **pack_rows([ProposalRow.empty()] * len(forest.token_ids)),
    )


def _follow(texts: list[_Text], running: list[int], reply: VerifyReply) -> None:
    emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
    for index, i in enumerate(running):
        assert Status(reply.status[index]) is Status.DECODED, "the cache has room for all"
        texts[i].is_started = True
        texts[i].emitted += emitted[index].tolist()
        texts[i].is_finished = Finish(reply.finish[index]) is not Finish.NONE
