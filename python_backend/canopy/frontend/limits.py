"""What a deployment and its target model leave to the engine and to the parser."""

import json
import logging
from pathlib import Path
from typing import Any

from canopy.config import Deployment
from canopy.costs.profile import Profile
from canopy.costs.profile_file import load_profile
from canopy.engine.request_queue import EngineLimits
from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.frontend.sampling_options import ClientParameters, parse_parameters
from canopy.frontend.sampling_params import ModelLimits
from canopy.models.config import ModelConfig
from canopy.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
# Of generation_config.json, and the values with which they change nothing.
_NOT_APPLIED = {
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
}


def engine_limits(deployment: Deployment, profile: Profile | None = None) -> EngineLimits:
    """The engine's share of a deployment, and of what was measured on its machine."""
    cost_model = (profile or load_profile(deployment)).cost_model
    return EngineLimits(
        max_running=deployment.limits.max_running,
        max_waiting=deployment.limits.max_waiting,
        num_blocks=deployment.cache.num_blocks,
        block_size=deployment.cache.block_size,
        max_step_tokens=deployment.limits.max_step_tokens,
        max_prompt_slowdown=deployment.limits.max_prompt_slowdown,
        cost_model=cost_model,
    )


def model_limits(folder: Path, tokenizer: Tokenizer) -> ModelLimits:
    """The parser's share of a model folder. Raises InvalidDeployment."""
    config = ModelConfig.from_folder(folder)
    eos_token_ids = tokenizer.eos_token_ids(config.eos_token_ids, config.vocab_size)
    if not eos_token_ids:
        logger.warning(
            "no file of the model names an end-of-sequence token: answers end at max_tokens only"
        )
    return ModelLimits(
        max_context_length=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        eos_token_ids=eos_token_ids,
        defaults=sampling_defaults(folder),
    )


def sampling_defaults(folder: Path) -> ClientParameters:
    """What the makers of a model recommend in its generation_config.json.

    As in vLLM a name that the file lacks counts as off; `do_sample = false` is temperature 0.
    Raises InvalidDeployment.
    """
    path = folder / GENERATION_CONFIG
    if not path.is_file():
        return ClientParameters()
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        given = {name: content.get(name) for name in _SAMPLING}
        if content.get("do_sample") is False:
            given["temperature"] = 0.0
        defaults = parse_parameters(given)
    except (OSError, ValueError, AttributeError, InvalidRequest) as error:
        raise InvalidDeployment(f"cannot use {path}: {error}") from error
    for name, neutral in _NOT_APPLIED.items():
        if content.get(name) not in (None, neutral):
            logger.warning("%s names %s = %s: not applied", path, name, content[name])
    return defaults
