"""The types of weights that a deployment may name, and what it gets where it names none."""

AUTO = "auto"
QUANTIZED = ("int8", "int4")  # for the CPU; a row's logits are the same bits in any batch
DTYPES = ("float32", "bfloat16", *QUANTIZED)


def target_dtype(named: str, device: str, prefers_4_bits: bool) -> str:
    """What stands for `auto`.

    prefers_4_bits: the model's file holds no more than four bits, so that they cost no quality, and
    the CPU has no matrix tiles, which only the int8 kernels use.
    """
    if named != AUTO:
        return named
    if device != "cpu":
        return "bfloat16"
    return "int4" if prefers_4_bits else "int8"


def drafter_dtype(named: str, target: str) -> str:
    """Of an autoregressive drafter, whose own weights have more than four bits."""
    return named or ("int8" if target in QUANTIZED else target)


def draft_head_dtype(named: str, target: str) -> str:
    """A draft head is computed in floats."""
    dtype = named or target
    return "float32" if dtype in QUANTIZED else dtype
