"""A small random model with a byte tokenizer, in the on-disk format of any other model.

Every token is one byte, so each non-ASCII character is split over tokens; weights are drawn wide,
so that logits lie far enough apart for greedy text to be stable.
"""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

EOS = "<|end|>"
# Tools are told of, and calls written, as Hermes and Qwen do.
TEMPLATE = (
    "{% if tools %}[tools] {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """256 byte tokens and one end-of-sequence token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    return tokenizer


def write_tiny_model(folder: Path, seed: int = 0, max_context: int = 512) -> Path:
    """Make the model folder; the same seed gives the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    eos = tokenizer.token_to_id(EOS)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        initializer_range=0.35,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": EOS, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
