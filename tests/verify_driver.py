"""What the engine does with a verifier, in few lines: start, offer trees, follow the replies."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from summing_decoder import VOCAB_SIZE, SummingDecoder, next_token

from canopy.acceptance.acceptor import Acceptor
from canopy.config import CacheConfig
from canopy.models.decoder import Decoder
from canopy.protocol.messages import Finish, Status, VerifyReply, VerifyRequest
from canopy.protocol.proposals import pack_rows
from canopy.protocol.sequence_updates import StartedSequence, pack_started
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, Forest, ProposalRow
from canopy.tree.forest import split_ragged
from canopy.verifier.stage import TargetVerifier

TreeMaker = Callable[["Client"], tuple[DraftTree, list[ProposalRow]]]


@dataclass
class Client:
    """One request."""

    id: int
    prompt: list[int]
    params: SamplingParams
    emitted: list[int] = field(default_factory=list)
    is_known: bool = False
    finish: Finish = Finish.NONE
    num_cached: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.emitted


def anchor_alone(client: Client) -> tuple[DraftTree, list[ProposalRow]]:
    """Plain decoding."""
    return DraftTree.of_anchor(client.tokens[-1]), [ProposalRow.empty()]


def random_trees(seed: int, num_nodes: int, hit_rate: float = 0.7) -> TreeMaker:
    """Trees of random shape in which many edges carry the token that the target will choose."""
    rng = np.random.default_rng(seed)

    def make(client: Client) -> tuple[DraftTree, list[ProposalRow]]:
        paths, parents = [client.tokens], [-1]
        for _ in range(num_nodes):
            parent = int(rng.integers(len(paths)))
            path = paths[parent]
            taken = {p[-1] for p, q in zip(paths[1:], parents[1:], strict=True) if q == parent}
            token = int(rng.integers(VOCAB_SIZE))
            if rng.random() < hit_rate:
                num_emitted = len(path) - len(client.prompt)
                token = next_token(path, num_emitted, client.params)
            if token not in taken:
                paths.append([*path, token])
                parents.append(parent)
        tree = DraftTree(np.array([p[-1] for p in paths], np.int32), np.array(parents, np.int32))
        return tree, [ProposalRow.empty()] * len(paths)

    return make


class Driver:
    """Clients over one verifier; the books are checked after every step."""

    def __init__(
        self,
        num_tokens: int = 512,
        block_size: int = 4,
        prefix_reuse: bool = True,
        max_step_tokens: int = 64,
        decoder: SummingDecoder | Decoder | None = None,
        acceptor: Acceptor | None = None,
    ) -> None:
        self.decoder = decoder or SummingDecoder()
        cache = CacheConfig(num_tokens, block_size, prefix_reuse)
        self.verifier = TargetVerifier(self.decoder, cache, max_step_tokens, acceptor=acceptor)
        self.clients: list[Client] = []
        self.finished_ids: list[int] = []
        self.num_preempted = 0
        self.num_accepted = 0

    def add(self, prompt: list[int], params: SamplingParams) -> Client:
        client = Client(1000 + len(self.clients), list(prompt), params)
        self.clients.append(client)
        return client

    def running(self) -> list[Client]:
        return [c for c in self.clients if c.finish is Finish.NONE]

    def request(self, clients: list[Client], make_tree: TreeMaker = anchor_alone) -> VerifyRequest:
        trees, rows = zip(*map(make_tree, clients), strict=True) if clients else ((), ())
        forest = Forest.pack(trees)
        started = [
            StartedSequence(c.id, np.array(c.tokens, np.int32), len(c.emitted), c.params)
            for c in clients
            if not c.is_known
        ]
        return VerifyRequest(
            finished_ids=np.array(self.finished_ids, np.int64),
            **pack_started(started),
            sequence_ids=np.array([c.id for c in clients], np.int64),
            num_nodes=forest.num_nodes,
            token_ids=forest.token_ids,
            parents=forest.parents,
            **pack_rows([row for node_rows in rows for row in node_rows]),
        )

    def step(self, make_tree: TreeMaker = anchor_alone) -> VerifyReply:
        clients = self.running()
        reply = self.verifier.verify(self.request(clients, make_tree))
        self.finished_ids = []
        emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
        for index, client in enumerate(clients):
            self.follow(client, Status(reply.status[index]), emitted[index].tolist())
            client.num_cached = int(reply.num_cached_tokens[index])
            client.finish = Finish(reply.finish[index])
            if client.finish is not Finish.NONE:
                self.finished_ids.append(client.id)
        self.num_accepted += int(reply.num_accepted.sum())
        self.check(reply)
        return reply

    def follow(self, client: Client, status: Status, emitted: list[int]) -> None:
        client.is_known = status in (Status.DECODED, Status.PREFILLING)
        client.emitted += emitted
        self.num_preempted += status is Status.PREEMPTED
        if status is Status.DECODED:
            assert emitted
            blocks, num_computed = self.verifier.blocks, len(client.tokens) - 1
            assert blocks.num_committed(client.id) == num_computed
            assert len(blocks.block_table(client.id)) == -(-num_computed // blocks.block_size)
        else:
            assert not emitted

    def check(self, reply: VerifyReply) -> None:
        blocks = self.verifier.blocks
        blocks.check_integrity()
        assert reply.num_free_blocks[0] == blocks.num_free
        assert reply.num_used_blocks[0] == blocks.num_used

    def run(self, make_tree: TreeMaker = anchor_alone, max_turns: int = 2000) -> list[list[int]]:
        """Serve all clients to their end; nothing is held afterwards."""
        for _ in range(max_turns):
            if not self.running():
                break
            self.step(make_tree)
        assert not self.running()
        self.step()
        assert self.verifier.blocks.num_used == 0
        return [client.emitted for client in self.clients]
