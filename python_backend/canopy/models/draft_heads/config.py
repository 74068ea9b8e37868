"""What the layouts of published draft heads have in common, one dataclass for each network."""

from dataclasses import dataclass

from canopy.models.config import ModelConfig


@dataclass(frozen=True)
class TargetShape:
    """What a head must know of its target."""

    num_layers: int
    hidden_size: int
    vocab_size: int

    @staticmethod
    def of(config: ModelConfig) -> "TargetShape":
        """The shape of a decoder."""
        return TargetShape(config.num_layers, config.hidden_size, config.vocab_size)


@dataclass(frozen=True)
class HeadConfig:
    """Of every head. Its features are the states of `target_layers`, side by side."""

    algorithm: str  # "eagle3", "dspark" or "dflash"
    layout: str
    backbone: ModelConfig  # of the head's own layers; its vocabulary is the target's
    target_layers: tuple[
        int, ...
    ]  # ascending numbers of layers done, see models.step.AuxHiddenStates
    target_hidden_size: int
    draft_vocab_size: int

    @property
    def hidden_states_size(self) -> int:
        return self.target_hidden_size * len(self.target_layers)

    @property
    def has_own_vocabulary(self) -> bool:
        """Whether the logits are of a part of the target's vocabulary."""
        return self.draft_vocab_size != self.backbone.vocab_size


@dataclass(frozen=True)
class Eagle3Config(HeadConfig):
    """The switches by which EAGLE-3 heads differ."""

    norms_residual: bool = False  # the first layer's residual is the normed feature
    norms_features: bool = False  # one norm over all states of a position before they are fused
    norms_each_state: bool = False  # one norm for each of these states
    norms_logits: bool = True  # a norm in front of lm_head
    feeds_back_normed: bool = False  # the next draft step reads the output of that norm


@dataclass(frozen=True)
class BlockHeadConfig(HeadConfig):
    """DSpark and DFlash: one pass over a block of rows, the anchor's first."""

    block_size: int = 0
    mask_token_id: int = 0
    first_slot: int = 0  # slot that predicts the token behind the anchor; those before are unused
    windows: tuple[int, ...] = ()  # of each layer; 0 sees the whole context and the whole block
    moves_window: bool = True  # a slot's window ends at the slot; otherwise all end at the anchor
    is_window_causal: bool = True  # in layers with a window a slot does not see later slots
    markov: str = ""  # "vanilla", "gated" or "rnn"; "": no Markov head
    markov_rank: int = 0
    has_confidence: bool = False
    confidence_reads_parent: bool = False
