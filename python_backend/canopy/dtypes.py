"""The types of weights that a deployment may name, and what it gets where it names none."""

AUTO = "auto"
QUANTIZED = ("int8", "int4")  # for the CPU; a row's logits are the same bits in any batch
DTYPES = ("float32", "bfloat16", *QUANTIZED)


def target_dtype(named: str, device: str, has_grouped_weights: bool) -> str:
    """What stands for `auto`: four bits only where the model's file has no more."""
    if named != AUTO:
        return named
    if device != "cpu":
        return "bfloat16"
    return "int4" if has_grouped_weights else "int8"


def drafter_dtype(named: str, target: str) -> str:
    """Of an autoregressive drafter, whose own weights have more than four bits."""
    return named or ("int8" if target in QUANTIZED else target)


def draft_head_dtype(named: str, target: str) -> str:
    """A draft head is computed in floats."""
    dtype = named or target
    return "float32" if dtype in QUANTIZED else dtype
