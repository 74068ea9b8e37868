"""The small drafter that comes with Canopy is whole, small enough, and pruned level by level."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from canopy.config import CacheConfig, Deployment, DrafterConfig, TargetConfig, TreeConfig
from canopy.drafter.autoregressive import make_autoregressive_source
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.model_store.assets import BLOCK_DRAFTER, SMALL_DRAFTER
from canopy.model_store.vocabulary import vocabulary_digest
from canopy.models.block_drafter.checkpoint import load_config
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings

MAX_BYTES = 30e6
TREE = TreeConfig()
TEXT = (
    "<|im_start|>user\nHow do I stay healthy?<|im_end|>\n<|im_start|>assistant\nTo stay healthy, "
    "it's important to make sure that you get enough sleep. Here are some of the most important "
    "things that you can do:\n\n1. **Eat a balanced diet**: Make sure that you are able to"
)


def test_its_files_are_small_and_for_the_same_vocabulary_as_the_block_drafter():
    assert sum(path.stat().st_size for path in SMALL_DRAFTER.iterdir()) <= MAX_BYTES
    assert vocabulary_digest(SMALL_DRAFTER) == load_config(BLOCK_DRAFTER).vocabulary
    tensors = load_file(SMALL_DRAFTER / "model.safetensors").values()
    assert 10e6 <= sum(tensor.numel() for tensor in tensors) <= 15e6
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


@pytest.fixture(scope="module")
def source():
    """In int8; it stands for its own target."""
    return make_autoregressive_source(
        Deployment(
            target=TargetConfig(model=str(SMALL_DRAFTER), dtype="int8"),
            drafter=DrafterConfig(source="autoregressive", model="default"),
            cache=CacheConfig(num_tokens=512, prefix_reuse=False),
        )
    )


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(SMALL_DRAFTER / "tokenizer.json"))


@pytest.fixture
def drafts(source, tokenizer, monkeypatch):
    """Of a policy at 32 places of the text: the proposal, rows scored by each forward, and the
    tokens that come next."""
    rows: list[int] = []
    forward = source._decoder.forward

    def counted(batch, cache, aux_hidden_states=None):
        rows.append(len(batch.logit_rows))
        return forward(batch, cache, aux_hidden_states)

    monkeypatch.setattr(source._decoder, "forward", counted)
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False).ids

    def propose(policy):
        settings = PolicySettings.of_request(policy, 32, TREE)
        for known in range(len(token_ids) - 33, len(token_ids) - 1):
            rows.clear()
            sequence = DraftSequence(known, token_ids[:known], SamplingParams(temperature=0.0))
            proposal = source.propose([DraftTask(sequence, settings)])[0]
            source.finish(known)
            yield proposal, list(rows), token_ids[known:]

    return propose


def test_it_has_learned_what_its_target_writes(drafts):
    hits = [
        coming[0] in proposal.tree.token_ids[1:5] for proposal, _, coming in drafts(PolicyName.TOPN)
    ]
    assert np.mean(hits) > 0.4


@pytest.mark.parametrize("policy", [PolicyName.THRESHOLD, PolicyName.ENTROPY])
def test_what_is_pruned_is_not_computed(drafts, policy):
    sizes = []
    for proposal, rows, _ in drafts(policy):
        tree = proposal.tree
        paths = np.zeros(tree.num_nodes + 1)
        for node in range(1, tree.num_nodes + 1):
            paths[node] = paths[tree.parents[node]] + proposal.log_probs[node]
        assert np.exp(paths.min()) >= TREE.threshold
        # One row for the anchor; below it only nodes that stay in the tree are scored, each once.
        assert rows[0] == 1
        assert sum(rows[1:]) <= tree.num_nodes
        assert len(rows) <= int(tree.depths.max()) + 1
        sizes.append(tree.num_nodes)
    assert min(sizes) < max(sizes)
    assert max(sizes) > 1


def test_entropy_opens_as_many_children_as_the_drafter_is_unsure(drafts):
    most = []
    for proposal, _, _ in drafts(PolicyName.ENTROPY):
        widths = [len(children) for children in proposal.tree.children]
        most.append(max(widths))
        for entropy, width in zip(proposal.entropies.tolist(), widths, strict=True):
            if width:
                assert entropy < TREE.entropy_stop_bits
                assert width <= (1 if entropy < TREE.entropy_narrow_bits else 3)
    assert min(most) == 0  # where it does not know
    assert max(most) > 1
