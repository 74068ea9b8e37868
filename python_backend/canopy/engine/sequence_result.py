"""What a verify reply says of each sequence."""

from collections.abc import Iterator
from dataclasses import dataclass

from canopy.engine.output import TokenLogprob
from canopy.protocol.failures import failure_of
from canopy.protocol.logprobs import TokenLogprobs, unpack_logprobs
from canopy.protocol.messages import Finish, Status, VerifyReply
from canopy.tree.forest import split_ragged


@dataclass(frozen=True)
class SequenceResult:
    """One sequence's part of a step; fields as in VerifyReply."""

    status: Status
    finish: Finish
    token_ids: list[int]  # emitted
    num_accepted: int
    num_cached_tokens: int
    failure: str  # why it failed
    logprobs: list[TokenLogprob]  # of the emitted tokens
    prompt_logprobs: list[TokenLogprob]
    first_prompt_logprob: int  # position of the first of them


def sequence_results(reply: VerifyReply) -> list[SequenceResult]:
    """In the order of the reply. Raises ValueError for ragged fields that do not fit."""
    emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
    logprobs, prompt_logprobs = unpack_logprobs(reply), unpack_logprobs(reply, "prompt_")
    firsts = reply.prompt_logprob_starts
    return [
        SequenceResult(
            Status(int(reply.status[index])),
            Finish(int(reply.finish[index])),
            emitted[index].tolist(),
            int(reply.num_accepted[index]),
            int(reply.num_cached_tokens[index]),
            failure_of(reply, index) if reply.status[index] == Status.FAILED else "",
            list(_listed(logprobs[index])),
            list(_listed(prompt_logprobs[index])),
            int(firsts[index]) if len(firsts) else 0,
        )
        for index in range(len(reply.status))
    ]


def _listed(found: TokenLogprobs) -> Iterator[TokenLogprob]:
    rows = zip(found.token_ids.tolist(), found.logprobs.tolist(), found.ranks.tolist(), strict=True)
    for token_ids, logprobs, rank in rows:
        top = tuple(zip(token_ids[1:], logprobs[1:], strict=True))
        yield TokenLogprob(token_ids[0], logprobs[0], rank, top)
