"""The block drafter that comes with Canopy is whole, small enough, and joined with lookup."""

import torch
from safetensors.torch import load_file

from canopy.models.block_drafter import BlockDrafter
from canopy.models.block_drafter_files import CONFIG_FILE, SHIPPED, WEIGHTS_FILE, load_config
from canopy.stages.sources.joint_weights import load_joint_weights
from canopy_kernels.continuations import FEATURES

MAX_BYTES = 30e6


def test_its_weights_fit_its_configuration():
    config = load_config(SHIPPED)
    embedding = torch.zeros(config.target_vocab_size, config.hidden_size)
    drafter = BlockDrafter(config, embedding)
    stored = load_file(SHIPPED / WEIGHTS_FILE)
    drafter.load_state_dict(stored)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in stored.values())
    ids = drafter.draft_ids
    assert bool((ids[1:] > ids[:-1]).all())
    assert 0 <= int(ids[0]) <= int(ids[-1]) < config.target_vocab_size


def test_its_files_stay_small():
    assert (SHIPPED / WEIGHTS_FILE).stat().st_size <= MAX_BYTES
    assert (SHIPPED / CONFIG_FILE).stat().st_size <= 10_000


def test_a_survival_model_joins_it_with_lookup():
    weights = load_joint_weights(SHIPPED)
    assert weights is not None
    assert weights[FEATURES.index("drafted_odds")] > 0.0
