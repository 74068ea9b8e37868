"""A small corpus with something to learn: each token decides the next, and the features tell it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from canopy.models.block_drafter.checkpoint import drafter_config, new_drafter
from canopy.models.block_drafter.network import BlockDrafter, BlockDrafterConfig
from canopy.models.block_drafter.runner import BlockInputs
from canopy_training.corpus.corpus import Answer, Corpus, Manifest, write_shard

VOCABULARY = 257
HIDDEN = 48
TAPS = (0, 1)
DRAFT_IDS = np.arange(0, 200)
BLOCK_SIZE = 4


def next_token(token: int) -> int:
    return (21 * token + 3) % 200  # all 200 before one comes again


def make_answer(number: int, num_prompt: int = 12, num_answer: int = 20) -> Answer:
    generator = np.random.default_rng(number)
    tokens = [int(generator.integers(200))]
    while len(tokens) < num_prompt + num_answer:
        tokens.append(next_token(tokens[-1]))
    codes = np.random.default_rng(1).normal(size=(VOCABULARY, len(TAPS), HIDDEN))
    best = np.array(tokens[num_prompt:])[:, None]
    return Answer(
        number=number,
        is_sampled=bool(number % 2),
        prompt_ids=np.array(tokens[:num_prompt], np.int32),
        answer_ids=np.array(tokens[num_prompt:], np.int32),
        hidden_states=codes[tokens[:-1]].astype(np.float16),
        top_ids=np.concatenate([best, best + 1, best + 57], axis=1).astype(np.int32),
        top_log_probs=np.log([[0.8, 0.1, 0.05]] * num_answer).astype(np.float16),
    )


def make_corpus(folder: Path, num_answers: int = 96) -> Corpus:
    manifest = Manifest(
        target="tiny",
        dtype="float32",
        vocab_size=VOCABULARY,
        prompts="none",
        seed=0,
        temperature=0.8,
        max_tokens=20,
        max_prompt_tokens=12,
        aux_hidden_state_layers=TAPS,
        num_top=3,
        shard_size=num_answers,
    )
    manifest.write(folder)
    write_shard(folder, 0, [make_answer(number) for number in range(num_answers)])
    return Corpus(folder)


def make_drafter(target_folder: Path, seed: int = 0, dropout: float = 0.0) -> BlockDrafter:
    """An untrained drafter of the tiny model."""
    torch.manual_seed(seed)
    config = drafter_config(target_folder, len(DRAFT_IDS), TAPS, num_layers=1)
    config = replace(config, block_size=BLOCK_SIZE)
    scales = torch.ones(len(TAPS))
    return new_drafter(target_folder, config, torch.from_numpy(DRAFT_IDS), scales, dropout)


def block_inputs(
    config: BlockDrafterConfig, vectors: np.ndarray, key_values: np.ndarray, batch: int, length: int
) -> BlockInputs:
    """Anchors at random places of contexts of `length` positions, a third without a match."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, length + 1, batch)
    return BlockInputs(
        generator.normal(size=(batch, config.hidden_size)).astype(np.float32),
        vectors.reshape(batch, length, -1)[np.arange(batch), lengths - 1],
        lengths,
        key_values.reshape(batch, length, *key_values.shape[1:]),
        lengths,
        generator.normal(size=(batch, config.block_size, config.hidden_size)).astype(np.float32),
        np.arange(batch) % 3,
    )
