"""Draft heads as they are published: EAGLE-3, DSpark and DFlash.

A head is a small network that reads hidden states of its target and proposes what the target
would say next. Its folder names its format in `config.json`; `read_head_config` recognizes it and
`load_draft_head` loads it. Heads know nothing of sequences, policies or messages; the sources of
the draft stage know nothing of layouts.

    layout         heads                     recognized by
    SafeAILab      EAGLE-3                   draft_vocab_size on an ordinary Llama configuration
    SpecForge      EAGLE-3                   LlamaForCausalLMEagle3
    DeepSpec       EAGLE-3, DSpark           Qwen3Eagle3Model, Qwen3DSparkModel
    z-lab          DFlash                    DFlashDraftModel
    speculators    EAGLE-3, DSpark, DFlash   speculators_model_type
"""

from canopy.models.draft_heads.block import BlockHead
from canopy.models.draft_heads.checkpoint import load_draft_head
from canopy.models.draft_heads.config import BlockHeadConfig, Eagle3Config, HeadConfig, TargetShape
from canopy.models.draft_heads.eagle3 import Eagle3Head
from canopy.models.draft_heads.recognition import is_draft_head, read_head_config

__all__ = [
    "BlockHead",
    "BlockHeadConfig",
    "Eagle3Config",
    "Eagle3Head",
    "HeadConfig",
    "TargetShape",
    "is_draft_head",
    "load_draft_head",
    "read_head_config",
]
