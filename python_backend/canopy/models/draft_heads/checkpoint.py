"""The tensors of a head's folder, and those that it leaves to its target.

A head may come without an embedding and, where it has the whole vocabulary, without `lm_head`:
then the target's own are taken. A reduced vocabulary is stored as differences, `d2t`: the target's
id of draft id i is i + d2t[i].
"""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.draft_heads.block import BlockHead
from canopy.models.draft_heads.config import BlockHeadConfig, Eagle3Config, HeadConfig, TargetShape
from canopy.models.draft_heads.eagle3 import Eagle3Head
from canopy.models.draft_heads.recognition import read_head_config
from canopy.models.llama.weights import require_fit, weight_files

PICKLED = "pytorch_model.bin"
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_VOCABULARY = ("d2t", "t2d")


def load_draft_head(
    folder: Path, target_folder: Path, dtype: torch.dtype, device: str
) -> Eagle3Head | BlockHead:
    """A head for inference. Raises InvalidDeployment for anything that does not fit."""
    target = ModelConfig.from_folder(target_folder)
    config = read_head_config(folder, TargetShape.of(target))
    tensors = _read_head(folder)
    _borrow(tensors, config, target_folder)
    return build_draft_head(config, tensors, dtype, device, str(folder))


def build_draft_head(
    config: HeadConfig,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype,
    device: str,
    origin: str,
) -> Eagle3Head | BlockHead:
    """A head of complete tensors. Raises InvalidDeployment, naming `origin`."""
    with torch.device("meta"):
        head = _network(config)
    draft_ids = _draft_ids(config, tensors, origin)
    stored = {name: tensors[name] for name in tensors if name not in _VOCABULARY}
    shapes = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    require_fit({name: tuple(tensor.shape) for name, tensor in stored.items()}, shapes, origin)
    placed = {name: tensor.to(device, dtype) for name, tensor in stored.items()}
    head.load_state_dict(placed, assign=True)
    head.draft_ids = draft_ids
    return head.to(device).eval().requires_grad_(False)


def _network(config: HeadConfig) -> Eagle3Head | BlockHead:
    if isinstance(config, Eagle3Config):
        return Eagle3Head(config)
    assert isinstance(config, BlockHeadConfig)
    return BlockHead(config)


def _read_head(folder: Path) -> dict[str, torch.Tensor]:
    """By the names of this package: the first layer of SafeAILab and SpecForge is `midlayer`."""
    if (folder / PICKLED).is_file():
        try:
            found = torch.load(folder / PICKLED, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # unpickling has many errors, without a common base
            raise InvalidDeployment(f"cannot read {folder / PICKLED}: {error}") from error
    else:
        found = _read_safetensors(folder, lambda name: True)
    return {name.replace("midlayer.", "layers.0.", 1): found[name] for name in found}


def _borrow(tensors: dict[str, torch.Tensor], config: HeadConfig, target_folder: Path) -> None:
    """Fill up from the target what the head's file may leave out."""
    wanted = {_EMBEDDING} - set(tensors)
    if not config.has_own_vocabulary:
        wanted |= {_HEAD} - set(tensors)
    if not wanted:
        return
    found = _read_safetensors(target_folder, lambda name: name.endswith((_EMBEDDING, _HEAD)))
    by_name = {name.rsplit(".", 2)[-2] + ".weight": found[name] for name in found}
    for name in wanted:
        tensor = by_name.get(name, by_name.get(_EMBEDDING))  # a tied head is the embedding
        if tensor is None:
            raise InvalidDeployment(f"{target_folder} has no {name}, which the head takes from it")
        tensors[name] = tensor


def _read_safetensors(folder: Path, is_wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    found = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in filter(is_wanted, tensors.keys()):
                    found[name] = tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InvalidDeployment(f"cannot read {file}: {error}") from error
    return found


def _draft_ids(config: HeadConfig, tensors: dict[str, torch.Tensor], origin: str) -> torch.Tensor:
    """int64 [Vd] target ids of the draft vocabulary."""
    own = torch.arange(config.draft_vocab_size)
    if not config.has_own_vocabulary:
        return own
    differences = tensors.get("d2t")
    if differences is None or differences.shape != own.shape:
        raise InvalidDeployment(
            f"{origin} has a draft vocabulary of {len(own)} tokens and lacks their d2t"
        )
    draft_ids = own + differences.long()
    if int(draft_ids.min()) < 0 or int(draft_ids.max()) >= config.backbone.vocab_size:
        raise InvalidDeployment(f"{origin}: d2t names tokens outside the target's vocabulary")
    return draft_ids
