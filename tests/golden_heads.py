"""Published draft heads in miniature, and what their reference code computes with them."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_model import byte_tokenizer

from canopy.kv_cache.float_cache import KVCache
from canopy.models.draft_heads import load_draft_head
from canopy_kernels.attention.tree_attention import tree_attention_reference

GOLDEN = Path(__file__).with_name("golden")
TOLERANCE = {torch.float64: 1e-5, torch.float32: 5e-4}
DTYPES = list(TOLERANCE)
PROMPT = 17


class ExactKVCache(KVCache):
    """Attends in the cache's own precision."""

    def attend(self, layer, query, rows, scale):
        return tree_attention_reference(query, self.keys[layer], self.values[layer], rows, scale)


def golden_of(name):
    return load_file(GOLDEN / name / "golden.safetensors")


def target_of(name):
    return GOLDEN / "targets" / ("llama" if name == "eagle3-safeai" else "qwen3")


def copied(name, folder, changes=None, extra=None, without=()):
    """The folder of a head with another configuration, more tensors or fewer."""
    folder = Path(folder) / name
    shutil.copytree(GOLDEN / name, folder)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**raw, **(changes or {})}), encoding="utf-8")
    tensors = {**load_file(folder / "model.safetensors"), **(extra or {})}
    kept = {k: t for k, t in tensors.items() if not k.startswith(tuple(without))}
    save_file(kept, folder / "model.safetensors")
    return folder


def load(name, dtype=torch.float32, folder=None):
    return load_draft_head(folder or GOLDEN / name, target_of(name), dtype, "cpu")


def variant(golden, prefix):
    """The tensors that a variant adds, by their published names."""
    prefix = f"{prefix}weights."
    return {k.removeprefix(prefix): golden[k] for k in golden if k.startswith(prefix)}


def error(found, expected):
    expected = expected.double()
    return float(((found.double() - expected).abs() / expected.abs().clamp(min=1.0)).max())


def servable_target(name, folder):
    """The target of a head with a byte tokenizer beside it."""
    shutil.copytree(target_of(name), folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def knowing_head(pairs, folder):
    """A DSpark head whose Markov head has learned which token follows which.

    pairs: of token ids. Codes of parents are random signs, so that they hardly overlap.
    """
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2, (512, 16), generator=generator).mul(2).sub(1).bfloat16()
    out = torch.zeros(512, 16, dtype=torch.bfloat16)
    for parent, child in set(pairs):
        out[child] += 4 * codes[parent]
    learned = {"markov_head.markov_w1.weight": codes, "markov_head.markov_w2.weight": out}
    return copied("dspark-deepspec", folder, extra=learned)
