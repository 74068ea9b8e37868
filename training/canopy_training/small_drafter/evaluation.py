"""Loss and acceptance of a small drafter on held-out answers, drafted as the draft stage drafts."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from canopy.config import CacheConfig, DrafterConfig, TreeConfig
from canopy.drafter.autoregressive import AutoregressiveSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.models.decoder import load_decoder
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree import DraftTree
from canopy.tree.policies import PolicySettings
from canopy_training.corpus.corpus import Answer
from canopy_training.small_drafter.model import save_small_drafter

_NUM_PLACES = 3  # in an answer, where proposals are made
_SHAPES = {
    "chain_tau": (PolicyName.CHAIN, 8),
    "tree8_tau": (PolicyName.TOPN, 8),
    "tree16_tau": (PolicyName.TOPN, 16),
}
_CACHE_TOKENS = 1 << 15


def evaluate_small(model: Any, target_folder: Path, answers: Sequence[Answer]) -> dict[str, Any]:
    """`loss`: cross entropy with the target's top-k distribution over the whole vocabulary;
    `accuracy` of the best token; acceptance lengths, the target's own token counted, at a few true
    prefixes."""
    with TemporaryDirectory() as folder:
        save_small_drafter(model, target_folder, Path(folder))
        decoder = load_decoder(folder, "float32", "cpu")
    source = AutoregressiveSource(
        decoder,
        decoder.config.vocab_size,
        CacheConfig(num_tokens=_CACHE_TOKENS, prefix_reuse=False),
        DrafterConfig(source="autoregressive", model="trained"),
        _CACHE_TOKENS,
    )
    return law_loss(model, answers) | acceptance_lengths(source, answers)


@torch.inference_mode()
def law_loss(model: Any, answers: Sequence[Answer]) -> dict[str, float]:
    """Means over all answer tokens."""
    model.eval()
    losses, hits = [], []
    for answer in answers:
        token_ids = torch.from_numpy(answer.token_ids[:-1].astype(np.int64)).to(model.device)
        logits = model(input_ids=token_ids[None]).logits[0, len(answer.prompt_ids) - 1 :]
        log_probs = torch.log_softmax(logits.float(), dim=-1).cpu()
        labels = torch.from_numpy(answer.top_ids.astype(np.int64))
        probs = torch.from_numpy(np.exp(answer.top_log_probs.astype(np.float32)))
        losses.append(-(probs * log_probs.gather(1, labels)).sum(dim=1))
        hits.append(log_probs.argmax(dim=1).numpy() == answer.answer_ids)
    return {
        "loss": float(torch.cat(losses).mean()),
        "accuracy": float(np.concatenate(hits).mean()),
    }


def acceptance_lengths(source: AutoregressiveSource, answers: Sequence[Answer]) -> dict[str, float]:
    """Of every shape of _SHAPES."""
    lengths: dict[str, list[int]] = {name: [] for name in _SHAPES}
    params = SamplingParams(temperature=0.0)
    for number, answer in enumerate(answers):
        sequence = DraftSequence(number, answer.prompt_ids.tolist(), params)
        stride = max(len(answer.answer_ids) // _NUM_PLACES, 1)
        for start in range(0, len(answer.answer_ids), stride):
            # The anchor is the last known token: at first that of the prompt.
            sequence.token_ids = answer.token_ids[: len(answer.prompt_ids) + start].tolist()
            truth = answer.answer_ids[start:].tolist()
            for name, (policy, num_nodes) in _SHAPES.items():
                settings = PolicySettings.of_request(policy, num_nodes, TreeConfig())
                proposal = source.propose([DraftTask(sequence, settings)])[0]
                lengths[name].append(1 + _num_accepted(proposal.tree, truth))
        source.finish(number)
    return {name: float(np.mean(values)) for name, values in lengths.items()}


def _num_accepted(tree: DraftTree, truth: list[int]) -> int:
    """Nodes on the path that is the text."""
    node = 0
    for depth, token in enumerate(truth):
        child = next((c for c in tree.children[node] if tree.token_ids[c] == token), None)
        if child is None:
            return depth
        node = child
    return len(truth)
