"""What a deployment and its target model leave to the engine and to the parser."""

from canopy.config import Deployment
from canopy.engine.loop import EngineLimits
from canopy.frontend.request_parser import ModelLimits
from canopy.models.config import ModelConfig


def engine_limits(deployment: Deployment) -> EngineLimits:
    """The engine's share of a deployment."""
    return EngineLimits(
        max_running=deployment.limits.max_running,
        max_waiting=deployment.limits.max_waiting,
        num_blocks=deployment.cache.num_blocks,
        block_size=deployment.cache.block_size,
    )


def model_limits(config: ModelConfig) -> ModelLimits:
    """The parser's share of a model's configuration."""
    return ModelLimits(
        max_context_length=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
    )
