"""Texts that the target wrote, in memory and kept in a file."""

from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from hashlib import sha256
from pathlib import Path

import numpy as np

from canopy.config import Deployment
from canopy.costs.profile_file import model_digest
from canopy.protocol.hidden_states import HiddenStates
from canopy.protocol.messages import Finish
from canopy.sampling import Acceptance, SamplingParams
from canopy.verifier.hidden_states import drafter_hidden_state_layers


@dataclass
class Written:
    """A prompt and what the target wrote after it."""

    token_ids: list[int]
    finish: Finish = Finish.NONE
    parts: list[HiddenStates] = field(default_factory=list)  # as they came with the replies

    @cached_property
    def hidden_states(self) -> HiddenStates | None:
        """Of all positions that a drafter may be told of; None where nobody asked for any."""
        return reduce(HiddenStates.joined, self.parts) if self.parts else None

    def between(self, first: int, end: int) -> HiddenStates | None:
        """The features of positions first..end-1, as far as they are known."""
        if self.hidden_states is None:
            return None
        offset = self.hidden_states.start
        states = self.hidden_states.states[max(first - offset, 0) : max(end - offset, 0)]
        return HiddenStates(max(first, offset), states)


Texts = dict[str, Written]


def text_key(prompt_ids: np.ndarray, params: SamplingParams) -> str:
    """Identifies a text by what decides it: the prompt and its sampling, however drafted."""
    sampling = replace(params.without_speculation(), acceptance=Acceptance.GREEDY)
    return sha256(prompt_ids.astype(np.int32).tobytes() + repr(sampling).encode()).hexdigest()


class TextStore:
    """One .npz file of one target's texts, with the features of one choice of layers."""

    def __init__(self, deployment: Deployment, file: Path) -> None:
        target = deployment.target
        aux_hidden_states = drafter_hidden_state_layers(deployment)
        self._origin = f"{model_digest(target.model)} {target.dtype} {aux_hidden_states}"
        self._file = file

    def load(self) -> Texts:
        """What the file holds; nothing where there is none, or one of another origin."""
        if not self._file.is_file():
            return {}
        with np.load(self._file) as arrays:
            if str(arrays["origin"]) != self._origin:
                return {}
            keys = {name.partition("/")[0] for name in arrays if "/" in name}
            return {key: _unpacked(arrays, key) for key in keys}

    def save(self, texts: Texts) -> None:
        """Replace the file."""
        arrays = {"origin": np.array(self._origin)}
        for key, written in texts.items():
            arrays[f"{key}/token_ids"] = np.array(written.token_ids, np.int32)
            arrays[f"{key}/finish"] = np.array(int(written.finish))
            if written.hidden_states is not None:
                arrays[f"{key}/start"] = np.array(written.hidden_states.start)
                arrays[f"{key}/states"] = written.hidden_states.states
        partial = self._file.with_suffix(".partial.npz")
        np.savez(partial, **arrays)
        partial.replace(self._file)


def _unpacked(arrays: np.lib.npyio.NpzFile, key: str) -> Written:
    written = Written(arrays[f"{key}/token_ids"].tolist(), Finish(int(arrays[f"{key}/finish"])))
    if f"{key}/start" in arrays:
        written.parts = [HiddenStates(int(arrays[f"{key}/start"]), arrays[f"{key}/states"])]
    return written
