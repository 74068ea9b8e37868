"""The verifier of a deployment: its target, loaded, and what surrounds it."""

import torch

from canopy.config import MAX_GRAPH_ROWS, Deployment
from canopy.grammar.target import target_grammars
from canopy.model_store.folders import model_folder
from canopy.models.decoder import Decoder
from canopy.models.llama.float_decoder import FloatDecoder
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.protocol.hidden_states import HiddenStateLayers
from canopy.verifier.hidden_states import drafter_hidden_state_layers
from canopy.verifier.kernel_warm_up import KernelLimits
from canopy.verifier.stage import TargetVerifier
from canopy.verifier.tensor_parallel.decoder import load_target, num_threads


def make_verifier(deployment: Deployment) -> TargetVerifier:
    """The verifier of a deployment, with its own threads. Raises InvalidDeployment."""
    target, limits, aux_hidden_states = (
        deployment.target,
        deployment.limits,
        drafter_hidden_state_layers(deployment),
    )
    torch.set_num_threads(num_threads(target))
    decoder = load_target(target)
    if target.replays_graphs:
        decoder = with_graphs(decoder, target.max_graph_rows, limits.max_running, aux_hidden_states)
    verifier = TargetVerifier(
        decoder,
        deployment.cache,
        limits.max_step_tokens,
        aux_hidden_states,
        grammars=target_grammars(model_folder(target.model)),
    )
    if target.device != "cpu":
        verifier.compile_kernels(KernelLimits.of(deployment))
    return verifier


def with_graphs(
    decoder: Decoder,
    max_rows: int,
    max_sequences: int,
    aux_hidden_states: HiddenStateLayers | None = None,
) -> Decoder:
    """The same decoder, its steps replayed, where it can be."""
    if not isinstance(decoder, FloatDecoder):
        return decoder
    layers = aux_hidden_states.layers if aux_hidden_states else ()
    return GraphDecoder(decoder, min(max_rows, MAX_GRAPH_ROWS), max_sequences, layers)
