"""Log-probs that a step owes: of prompt tokens that it computes, and of tokens that it emits.

Both come from the target's logits as they are before options change them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from canopy.protocol.logprobs import TokenLogprobs
from canopy.tree.forest import offsets_of
from canopy.verifier.outcome import Outcome
from canopy.verifier.scheduler import ScheduledSequence


@dataclass(frozen=True)
class StepLogits:
    """The logits of a step, taken apart."""

    of_nodes: torch.Tensor  # float32 [N, V] of anchors and drafted nodes, in the order of shares
    kept: dict[int, torch.Tensor]  # by number of a share: those of its nodes, unchanged
    prompts: dict[int, TokenLogprobs]  # by number of a share: of its prompt tokens


def take_apart(
    scheduled_sequences: Sequence[ScheduledSequence], logits: torch.Tensor
) -> StepLogits:
    """logits: float32 [L, V], of the rows of all segments that want some."""
    num_prompt = [scheduled.num_scored for scheduled in scheduled_sequences]
    num_nodes = [scheduled.num_node_logits for scheduled in scheduled_sequences]
    starts = offsets_of(np.add(num_prompt, num_nodes)).tolist()
    prompts, kept = {}, {}
    for index, scheduled in enumerate(scheduled_sequences):
        first, params = starts[index], scheduled.verify_input.sequence.params
        middle = first + num_prompt[index]
        if num_prompt[index]:
            top = params.prompt_logprobs
            prompts[index] = token_logprobs(logits[first:middle], scheduled.scored_token_ids, top)
        if params.logprobs >= 0 and num_nodes[index]:
            kept[index] = logits[middle : starts[index + 1]].clone()
    if prompts:
        parts = zip(starts[1:], num_nodes, strict=True)
        rows = np.concatenate([np.arange(end - number, end) for end, number in parts])
        logits = logits[torch.from_numpy(rows).to(logits.device)]
    return StepLogits(logits, kept, prompts)


def attach_logprobs(
    scheduled_sequences: Sequence[ScheduledSequence],
    outcomes: Sequence[Outcome],
    step: StepLogits,
) -> list[Outcome]:
    """The outcomes with the log-probs that their sequences ask for."""
    found = []
    for index, (scheduled, outcome) in enumerate(zip(scheduled_sequences, outcomes, strict=True)):
        if outcome.emitted and index in step.kept:
            rows = [0, *outcome.path][: len(outcome.emitted)]
            top = scheduled.verify_input.sequence.params.logprobs
            own = token_logprobs(step.kept[index][rows], outcome.emitted, top)
            outcome = replace(outcome, logprobs=own)
        if index in step.prompts:
            first = scheduled.num_committed + 1
            outcome = replace(
                outcome, prompt_logprobs=step.prompts[index], first_prompt_logprob=first
            )
        found.append(outcome)
    return found


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> TokenLogprobs:
    """Of the tokens that followed each row. logits: float32 [n, V]."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    own = log_probs.gather(1, chosen)
    ranks = (log_probs > own).sum(dim=1) + 1
    best = torch.topk(log_probs, min(num_top, logits.shape[1]), dim=-1)
    return TokenLogprobs(
        torch.cat([chosen, best.indices], dim=1).int().cpu().numpy(),
        torch.cat([own, best.values], dim=1).cpu().numpy(),
        ranks.int().cpu().numpy(),
    )
