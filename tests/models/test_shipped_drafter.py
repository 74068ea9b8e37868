"""The block drafter that comes with Canopy is whole, small enough, and joined with lookup."""

import torch
from safetensors.torch import load_file

from canopy.drafter.block.combined_weights import load_combined_weights
from canopy.model_store.assets import BLOCK_DRAFTER
from canopy.models.block_drafter.checkpoint import CONFIG_FILE, WEIGHTS_FILE, load_config
from canopy.models.block_drafter.network import BlockDrafter
from canopy_kernels.ngram.continuations import FEATURES

MAX_BYTES = 30e6


def test_its_weights_fit_its_configuration():
    config = load_config(BLOCK_DRAFTER)
    embedding = torch.zeros(config.target_vocab_size, config.hidden_size)
    drafter = BlockDrafter(config, embedding)
    stored = load_file(BLOCK_DRAFTER / WEIGHTS_FILE)
    drafter.load_state_dict(stored)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in stored.values())
    ids = drafter.draft_ids
    assert bool((ids[1:] > ids[:-1]).all())
    assert 0 <= int(ids[0]) <= int(ids[-1]) < config.target_vocab_size


def test_its_files_stay_small():
    assert (BLOCK_DRAFTER / WEIGHTS_FILE).stat().st_size <= MAX_BYTES
    assert (BLOCK_DRAFTER / CONFIG_FILE).stat().st_size <= 10_000


def test_a_survival_model_joins_it_with_lookup():
    weights = load_combined_weights(BLOCK_DRAFTER)
    assert weights is not None
    assert weights[FEATURES.index("drafted_odds")] > 0.0
