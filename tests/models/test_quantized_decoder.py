"""A quantized decoder computes a row the same to the bit wherever it stands, near to float32."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, oracle_logits, oracle_states, write_family

from canopy.errors import InvalidDeployment
from canopy.kv_cache.int8_cache import Int8KVCache
from canopy.model_store.integrity import drop_damaged_copies
from canopy.models.config import ModelConfig
from canopy.models.decoder import load_decoder
from canopy.models.quantized import weights as quantized_weights
from canopy.models.quantized.decoder import QuantizedDecoder
from canopy.models.quantized.formats import FORMATS
from canopy.models.quantized.weights import kept_folder, load_quantized_weights
from canopy.models.step_batch import AuxHiddenStates, Segment, assemble_step
from canopy_kernels.int4.gemm import quantize_rows
from canopy_kernels.int4.layout import GROUP, unpack_groups
from canopy_kernels.int4.quantize import quantize4, quantize8

INT8 = FORMATS["int8"]
BLOCK_SIZE = 16
NUM_BLOCKS = 16
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 97, 50)]
TREE = [-1, 0, 0, 1, 1, 2, 3, 3, 6]  # the anchor follows the context
DRAFTED = TOKENS[30 : 30 + len(TREE)]
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def shuffled_table(seed: int = 0) -> list[int]:
    return [int(b) for b in np.random.default_rng(seed).permutation(NUM_BLOCKS)[:8]]


def segment(
    context_length: int, table: list[int], token_ids: list[int], parents: list[int] | None = None
) -> Segment:
    """Rows with all their logits; by default a chain."""
    rows = np.arange(len(token_ids))
    chain = rows - 1 if parents is None else np.array(parents)
    return Segment(context_length, table, np.array(token_ids), chain, rows)


def step(decoder: QuantizedDecoder, cache: Int8KVCache, *segments: Segment) -> torch.Tensor:
    return decoder.forward(assemble_step(segments, BLOCK_SIZE, "cpu"), cache).clone()


def new_cache(decoder: QuantizedDecoder) -> Int8KVCache:
    return decoder.new_cache(NUM_BLOCKS, BLOCK_SIZE)


def chunked(
    decoder: QuantizedDecoder, token_ids: list[int], chunk: int, seed: int = 0
) -> torch.Tensor:
    cache, table = new_cache(decoder), shuffled_table(seed)
    return torch.cat(
        [
            step(decoder, cache, segment(start, table, token_ids[start : start + chunk]))
            for start in range(0, len(token_ids), chunk)
        ]
    )


def load(folder: Path, num_threads: int, dtype: str = "int8") -> QuantizedDecoder:
    config = ModelConfig.from_folder(folder)
    weights = load_quantized_weights(folder, config, FORMATS[dtype])
    return QuantizedDecoder(config, *weights, num_threads)


@dataclass(frozen=True)
class Case:
    """A model folder in a format, and the oracle that it was written from."""

    folder: Path
    model: torch.nn.Module
    dtype: str

    def load(self, num_threads: int) -> QuantizedDecoder:
        return load(self.folder, num_threads, self.dtype)


@pytest.fixture(
    scope="module",
    params=[*((name, "int8") for name in FAMILIES), ("smollm2", "int4"), ("qwen3", "int4")],
    ids="-".join,
)
def case(request, tmp_path_factory) -> Case:
    name, dtype = request.param
    folder = tmp_path_factory.mktemp("family") / "model"
    return Case(folder, write_family(name, folder), dtype)


@pytest.fixture(scope="module")
def decoder(case) -> QuantizedDecoder:
    return case.load(num_threads=2)


def rounded_weight(weight: torch.Tensor, dtype: str, is_head: bool) -> torch.nn.Parameter:
    """On the grid of a format."""
    if dtype == "int8":
        scales = weight.abs().amax(dim=1, keepdim=True) / 127
        return torch.nn.Parameter((weight / scales).round() * scales)
    levels, *grid = unpack_groups((quantize8 if is_head else quantize4)(weight.numpy()))
    scales, minima = (part.astype(np.float32)[..., None] for part in grid)
    groups = levels.reshape(len(levels), -1, GROUP) * scales + minima
    num_outputs, num_inputs = weight.shape
    rounded = groups.reshape(len(levels), -1)[:num_outputs, :num_inputs]
    return torch.nn.Parameter(torch.from_numpy(rounded))


def rounded_rows(_: torch.nn.Module, arguments: tuple[torch.Tensor]) -> torch.Tensor:
    """Inputs of a linear as int4 takes them, of 8 bits per group."""
    (rows,) = arguments
    levels, scales = quantize_rows(rows.reshape(-1, rows.shape[-1]).numpy())
    groups = levels * scales[..., None]
    return torch.from_numpy(groups.reshape(len(groups), -1)[:, : rows.shape[-1]]).view(rows.shape)


@torch.no_grad()
def rounded_model(case: Case) -> torch.nn.Module:
    """The oracle with the weights of a format, and its rows where they have 8 bits."""
    rounded = type(case.model)(case.model.config).eval()
    rounded.load_state_dict(case.model.state_dict())
    embedding = case.model.get_input_embeddings().weight.clone()
    rounded.lm_head.weight = torch.nn.Parameter(case.model.lm_head.weight.clone())
    if case.dtype == "int4":
        embedding = rounded_weight(embedding, "int4", is_head=True).data
    rounded.set_input_embeddings(torch.nn.Embedding.from_pretrained(embedding))
    for name, module in rounded.named_modules():
        if name.endswith((*LINEARS, "lm_head")):
            module.weight = rounded_weight(module.weight, case.dtype, name == "lm_head")
            if case.dtype == "int4":
                module.register_forward_pre_hook(rounded_rows)
    return rounded


def test_logits_are_those_of_the_rounded_weights_but_for_the_rounded_cache(case):
    expected = oracle_logits(rounded_model(case), TOKENS)
    logits = chunked(case.load(num_threads=1), TOKENS, 50)
    assert logits.dtype == torch.float32
    tolerance = 0.03 if case.dtype == "int8" else 0.06  # a row of 8 bits may fall to either side
    assert (logits - expected).norm() < tolerance * expected.norm()
    assert (logits[0] - expected[0]).norm() < tolerance / 2 * expected[0].norm()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_chunks_slots_and_threads_change_no_bit(case, decoder, num_threads):
    expected = chunked(decoder, TOKENS, 50)
    other = case.load(num_threads)
    for chunk in (1, 7, 50):
        assert torch.equal(chunked(other, TOKENS, chunk, seed=chunk), expected)


def test_every_node_of_a_tree_is_bit_equal_to_plain_decoding(decoder):
    cache, table = new_cache(decoder), shuffled_table()
    context = TOKENS[:18]
    step(decoder, cache, segment(0, table, context))
    logits = step(decoder, cache, segment(len(context), table, DRAFTED, TREE))
    for node in range(len(TREE)):
        branch = [node]
        while TREE[branch[0]] >= 0:
            branch.insert(0, TREE[branch[0]])
        alone = chunked(decoder, context + [DRAFTED[n] for n in branch], 1)
        assert torch.equal(logits[node], alone[-1])


def test_other_sequences_of_a_step_change_no_bit(decoder):
    cache = new_cache(decoder)
    tables = np.random.default_rng(1).permutation(NUM_BLOCKS).reshape(4, 4).tolist()
    contexts = [TOKENS[:16], TOKENS[16:17], TOKENS[20:41]]
    opening = [segment(0, t, c) for t, c in zip(tables[:3], contexts, strict=True)]
    step(decoder, cache, *opening)
    drafted = [
        segment(16, tables[0], DRAFTED, TREE),
        segment(1, tables[1], [9]),
        segment(21, tables[2], DRAFTED, TREE),
        segment(0, tables[3], TOKENS[:23]),
    ]
    together = step(decoder, cache, *drafted)
    alone = [step(decoder, cache, part) for part in drafted]
    assert torch.equal(together, torch.cat(alone))


def test_only_the_wanted_rows_get_logits(decoder):
    everything = chunked(decoder, TOKENS[:20], 20)
    chain = np.arange(20) - 1
    wanted = Segment(0, shuffled_table(), np.array(TOKENS[:20]), chain, np.array([4, 19]))
    silent = Segment(0, shuffled_table(1), np.array(TOKENS[:20]), chain, np.array([], int))
    assert torch.equal(step(decoder, new_cache(decoder), wanted), everything[[4, 19]])
    assert step(decoder, new_cache(decoder), silent).shape == (0, 97)


def test_tapped_states_are_the_same_bits_in_any_chunk_and_leave_the_logits_alone(decoder):
    layers = (0, 1)

    def tapped(chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        cache, states, logits = new_cache(decoder), [], []
        for start in range(0, len(TOKENS), chunk):
            part = segment(start, shuffled_table(), TOKENS[start : start + chunk])
            batch = assemble_step([part], BLOCK_SIZE, "cpu")
            aux_hidden_states = AuxHiddenStates.of(layers, batch, decoder.config.hidden_size)
            logits.append(decoder.forward(batch, cache, aux_hidden_states).clone())
            states.append(aux_hidden_states.states)
        return torch.cat(states), torch.cat(logits)

    states, logits = tapped(50)
    assert torch.equal(logits, chunked(decoder, TOKENS, 50))
    assert torch.equal(tapped(7)[0], states)


def test_tapped_states_are_near_those_of_transformers(case):
    decoder = case.load(num_threads=2)
    batch = assemble_step([segment(0, shuffled_table(), TOKENS)], BLOCK_SIZE, "cpu")
    aux_hidden_states = AuxHiddenStates.of((0, 1), batch, decoder.config.hidden_size)
    decoder.forward(batch, new_cache(decoder), aux_hidden_states)
    expected = oracle_states(rounded_model(case), TOKENS)[:, :2]
    assert torch.allclose(aux_hidden_states.states[:, 0], expected[:, 0])
    assert (aux_hidden_states.states - expected).norm() < 0.05 * expected.norm()


@pytest.fixture
def small(tmp_path) -> Path:
    write_family("smollm2", tmp_path / "model")
    return tmp_path / "model"


def test_weights_are_converted_once_and_again_when_the_model_changes(small, monkeypatch):
    conversions = []
    convert = quantized_weights.convert
    monkeypatch.setattr(
        quantized_weights, "convert", lambda *a: conversions.append(None) or convert(*a)
    )
    first = chunked(load(small, 1), TOKENS, 50)
    assert torch.equal(chunked(load(small, 1), TOKENS, 50), first)
    assert len(conversions) == 1
    write_family("smollm2", small, max_shard_size="40KB")
    (small / "model.safetensors").unlink()
    assert torch.equal(chunked(load(small, 1), TOKENS, 50), first)
    assert len(conversions) == 2
    assert sorted(path.name for path in small.parent.iterdir()) == [
        "model",
        kept_folder(small, INT8).name,
    ]


@pytest.mark.parametrize("hurt", ["cut", "lost"])
def test_a_kept_copy_that_is_not_whole_is_made_again(small, hurt):
    first = chunked(load(small, 1), TOKENS, 50)
    array = kept_folder(small, INT8) / "head.blocks.npy"
    whole = array.read_bytes()
    if hurt == "cut":
        array.write_bytes(whole[:-1])
    else:
        array.unlink()
    assert torch.equal(chunked(load(small, 1), TOKENS, 50), first)
    assert array.read_bytes() == whole


def test_a_flipped_bit_of_a_kept_copy_is_found_by_a_full_check(small):
    first = chunked(load(small, 1), TOKENS, 50)
    array = kept_folder(small, INT8) / "head.blocks.npy"
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    (line,) = drop_damaged_copies(small)
    assert "another sha256" in line
    assert torch.equal(chunked(load(small, 1), TOKENS, 50), first)
    assert drop_damaged_copies(small) == []


def test_without_a_place_to_keep_them_weights_are_converted_in_memory(small, monkeypatch):
    kept = chunked(load(small, 1), TOKENS, 50)
    (kept_folder(small, INT8) / "manifest.json").unlink()

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError("read-only")

    monkeypatch.setattr(quantized_weights.tempfile, "mkdtemp", refuse)
    assert torch.equal(chunked(load(small, 1), TOKENS, 50), kept)
    assert not (kept_folder(small, INT8) / "manifest.json").exists()


def test_blocks_of_a_cache_hold_whole_groups_of_slots(small):
    with pytest.raises(InvalidDeployment, match="multiple of 16"):
        load(small, 1).new_cache(8, 24)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_format_is_chosen_by_the_deployment_and_refused_off_the_cpu(small, dtype):
    decoder = load_decoder(small, dtype, "cpu")
    assert isinstance(decoder, QuantizedDecoder)
    assert torch.equal(chunked(decoder, TOKENS, 50), chunked(load(small, 1, dtype), TOKENS, 50))
    with pytest.raises(InvalidDeployment, match="CPU only"):
        load_decoder(small, dtype, "cuda")
