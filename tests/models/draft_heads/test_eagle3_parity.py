"""EAGLE-3 heads compute what the reference code of their layout does."""

import numpy as np
import pytest
import torch
from golden_heads import DTYPES, PROMPT, TOLERANCE, ExactKVCache, copied, error, golden_of, load
from golden_heads import variant as tensors_of

from canopy.kv_cache.float_cache import KVCache
from canopy.models.step_batch import Segment, assemble_step

BLOCK_SIZE = 16
CHAINS = ["eagle3-safeai", "eagle3-speculators", "eagle3-deepspec"]
VARIANTS = {
    "v_nbr_false": {"norm_before_residual": False},
    "v_norm_before_fc": {"norm_before_fc": True},
    "v_eagle31": {"fc_norm": True, "norm_output": True},
    "v_qwen3_layer": {},
    "v_two_layers": {},
}


class Run:
    """A head over a cache of its own, for sequences that each have four blocks."""

    def __init__(self, head, num_sequences=1):
        self.head = head
        kind = ExactKVCache if head.norm.weight.dtype == torch.float64 else KVCache
        self.cache = head.new_cache(4 * num_sequences, BLOCK_SIZE, kind)

    def forward(self, rows, features):
        """rows: by sequence, its number, its context length and the tokens of a chain behind."""
        segments = [
            Segment(
                context_length,
                list(range(4 * sequence, 4 * sequence + 4)),
                np.array(token_ids),
                np.arange(-1, len(token_ids) - 1),
                np.zeros(0, int),
            )
            for sequence, context_length, token_ids in rows
        ]
        return self.head(assemble_step(segments, BLOCK_SIZE), features, self.cache)

    def prefill(self, token_ids, states):
        return self.forward([(0, 0, token_ids)], self.head.fuse(states))

    def chain(self, output, context_length, length):
        """Greedy drafts below a context whose last output is given: tokens, logits, outputs."""
        tokens, outputs = [], [output]
        for _ in range(length):
            logits = self.head.logits(outputs[-1])
            tokens.append(int(self.head.draft_ids[logits.argmax()]))
            features = self.head.feedback(torch.stack(outputs))
            outputs.append(self.forward([(0, context_length, tokens)], features)[-1])
        drafted = torch.stack(outputs[:-1])
        return tokens, self.head.logits(drafted), drafted


def check_chain(head, golden, prefix=""):
    tolerance = TOLERANCE[head.norm.weight.dtype]
    run = Run(head)
    outputs = run.prefill(golden["prefill_input_ids"].numpy(), golden["target_features"])
    assert error(head.logits(outputs), golden[f"{prefix}prefill_logits"]) < tolerance
    tokens, logits, drafted = run.chain(outputs[-1], PROMPT, 5)
    assert tokens == golden[f"{prefix}chain_tokens"].tolist()
    assert error(logits, golden[f"{prefix}chain_logits"]) < tolerance
    assert error(drafted, golden[f"{prefix}chain_hidden"]) < tolerance
    return run, outputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CHAINS)
def test_prompt_and_chain_of_drafts(name, dtype):
    golden = golden_of(name)
    _, outputs = check_chain(load(name, dtype), golden)
    assert error(outputs, golden["prefill_hidden"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_switches_of_the_speculators_layout(name, dtype, tmp_path):
    golden = golden_of("eagle3-speculators")
    extra = tensors_of(golden, f"{name}.")
    changes = dict(VARIANTS[name])
    layers = {"v_qwen3_layer": {"model_type": "qwen3"}, "v_two_layers": {"num_hidden_layers": 2}}
    if name in layers:
        raw = load("eagle3-speculators").config.backbone
        changes["transformer_layer_config"] = layer_values(raw) | layers[name]
    folder = copied("eagle3-speculators", tmp_path, changes, extra)
    check_chain(load("eagle3-speculators", dtype, folder), golden, f"{name}.")


def layer_values(config):
    return {
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,  # as files of earlier versions name it
        "rope_scaling": None,
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_second_round_follows_the_committed_tokens(dtype):
    golden = golden_of("eagle3-deepspec")
    head = load("eagle3-deepspec", dtype)
    run, _ = check_chain(head, golden)
    features = head.fuse(golden["round2.features"])
    last = run.forward([(0, PROMPT, golden["round2.committed"].tolist())], features)[-1]
    assert error(last, golden["round2.last_hidden"]) < TOLERANCE[dtype]
    assert error(head.logits(last), golden["round2.last_logits"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("prefix", "changes"),
    [("", {}), ("fcnorm.", {"fc_norm": True}), ("nonorm.", {"norm_output": False})],
)
def test_chains_from_every_position_in_one_pass(prefix, changes, dtype, tmp_path):
    """Sequence j has j + 1 context rows, and drafts the tokens of column j."""
    golden = golden_of("eagle3-specforge")
    extra = tensors_of(golden, "") if prefix == "fcnorm." else {}
    head = load("eagle3-specforge", dtype, copied("eagle3-specforge", tmp_path, changes, extra))
    ids, tolerance = golden[f"{prefix}step_input_ids"], TOLERANCE[dtype]
    run, fused = Run(head, PROMPT), head.fuse(golden["target_features"])
    contexts = [(j, 0, ids[0, : j + 1].tolist()) for j in range(PROMPT)]
    outputs = run.forward(contexts, torch.cat([fused[: j + 1] for j in range(PROMPT)]))
    lasts = torch.tensor([j * (j + 3) // 2 for j in range(PROMPT)])
    known = [outputs[lasts]]
    for step in range(1, 5):
        chains = [(j, j + 1, ids[1 : step + 1, j].tolist()) for j in range(PROMPT)]
        features = head.feedback(torch.stack(known, dim=1).flatten(0, 1))
        known.append(run.forward(chains, features).unflatten(0, (PROMPT, step))[:, -1])
    logits = head.logits(torch.stack(known))
    assert error(logits, golden[f"{prefix}step_logits"]) < tolerance
    if f"{prefix}step_hidden" in golden:
        assert error(torch.stack(known), golden[f"{prefix}step_hidden"]) < tolerance
    tokens = head.draft_ids[logits[:, -1].argmax(-1)]
    assert tokens.tolist() == golden[f"{prefix}chain_tokens"].tolist()
