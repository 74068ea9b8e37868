"""A corpus on disk: the target's answers with what the target knew while it wrote them.

    manifest.json            what the corpus was made with, see `Manifest`
    shard-00000/             a shard appears by one rename, so one under its final name is complete
        answers.npy          int64 [n, 4]: number of the prompt, prompt length P, answer length A,
                             1 where the answer was sampled and 0 where it is greedy
        token_ids.npy        int32 [sum of P + A]: prompt and answer of each answer in turn
        features.npy         float16 [sum of P + A - 1, taps, E]: hidden states of every position
                             that was computed, which is all but the answer's last token
        top_ids.npy          int32 [sum of A, K]: the target's most probable tokens, best first,
        top_log_probs.npy    float16 [sum of A, K]: and their log-probs at temperature 1, in the
                             row of the answer token that they compete with

Row i of an answer's features is the state at its i-th token, which predicts token i + 1; row j of
its top tokens was computed from features row P - 1 + j. An answer ends with an end-of-sequence
token or is cut at the longest length. States that float16 cannot hold are cut to its range.
"""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

FORMAT = 1
_OPEN_SHARDS = 16


class InvalidCorpus(Exception):
    """A folder that is no corpus, that was made with other settings, or that is being made."""


@dataclass(frozen=True)
class Manifest:
    """What decides the content of a corpus; answers of one corpus share it."""

    target: str  # fingerprint of the weights
    dtype: str
    vocab_size: int
    prompts: str  # sha256 of the prompt file
    seed: int  # of the order of the prompts and of the sampled answers
    temperature: float  # of the sampled answers
    max_tokens: int
    max_prompt_tokens: int
    aux_hidden_state_layers: tuple[int, ...]
    num_top: int
    shard_size: int
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Make the folder a corpus. Raises InvalidCorpus where it already is another one."""
        path = folder / "manifest.json"
        if path.exists():
            if Manifest.read(folder) != self:
                raise InvalidCorpus(f"{folder} was made with other settings: see {path}")
            return
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """Raises InvalidCorpus."""
        try:
            fields = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            manifest = Manifest(
                **fields | {"aux_hidden_state_layers": tuple(fields["aux_hidden_state_layers"])}
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InvalidCorpus(f"{folder} is no corpus: {error}") from error
        if manifest.format != FORMAT:
            raise InvalidCorpus(f"{folder} has format {manifest.format}, not {FORMAT}")
        return manifest


@dataclass(frozen=True)
class Answer:
    """One prompt and its answer; P prompt tokens, A answer tokens, at least 1 of each."""

    number: int  # of the prompt, in the order in which the corpus takes them
    is_sampled: bool
    prompt_ids: np.ndarray  # int32 [P]
    answer_ids: np.ndarray  # int32 [A]
    hidden_states: np.ndarray  # float16 [P + A - 1, taps, E]
    top_ids: np.ndarray  # int32 [A, K]
    top_log_probs: np.ndarray  # float16 [A, K]

    @property
    def token_ids(self) -> np.ndarray:
        """int32 [P + A]"""
        return np.concatenate([self.prompt_ids, self.answer_ids])


def shard_folder(folder: Path, index: int) -> Path:
    """Where a shard lies once it is complete."""
    return folder / f"shard-{index:05d}"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Nobody else writes shards here meanwhile. Raises InvalidCorpus where somebody does."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidCorpus(
                f"another run is making {folder}: wait for it, or stop it"
            ) from error
        yield


def write_shard(folder: Path, index: int, answers: Sequence[Answer]) -> None:
    """Store the answers, one or more, as one shard."""
    final = shard_folder(folder, index)
    partial = final.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    records = [(a.number, len(a.prompt_ids), len(a.answer_ids), a.is_sampled) for a in answers]
    arrays = {
        "answers": np.array(records, np.int64),
        "token_ids": np.concatenate([a.token_ids for a in answers]),
        "hidden_states": np.concatenate([a.hidden_states for a in answers]),
        "top_ids": np.concatenate([a.top_ids for a in answers]),
        "top_log_probs": np.concatenate([a.top_log_probs for a in answers]),
    }
    for name, array in arrays.items():
        np.save(partial / f"{name}.npy", array)
    partial.rename(final)


class Corpus(Sequence[Answer]):
    """The complete shards of a folder at the moment of opening; arrays are memory-mapped."""

    def __init__(self, folder: Path | str) -> None:
        """Raises InvalidCorpus."""
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.shard_indices = complete_shards(self.folder)
        self._shards = [_records(self.folder, index) for index in self.shard_indices]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def num_answer_tokens(self) -> int:
        return int(sum(shard[:, 2].sum() for shard in self._shards))

    def __getitem__(self, index: int) -> Answer:  # type: ignore[override]
        """An answer; its features and top tokens are read when they are touched."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        place = int(np.searchsorted(self._starts, index, side="right")) - 1
        local, records = index - int(self._starts[place]), self._shards[place]
        number, num_prompt, num_answer, is_sampled = records[local].tolist()
        before = records[:local, 1:3].sum(axis=0)
        first, row = int(before.sum()), int(before[1])
        arrays = _arrays(shard_folder(self.folder, self.shard_indices[place]))
        token_ids = arrays["token_ids"][first : first + num_prompt + num_answer]
        computed = first - local
        return Answer(
            number=number,
            is_sampled=bool(is_sampled),
            prompt_ids=token_ids[:num_prompt],
            answer_ids=token_ids[num_prompt:],
            hidden_states=arrays["hidden_states"][
                computed : computed + num_prompt + num_answer - 1
            ],
            top_ids=arrays["top_ids"][row : row + num_answer],
            top_log_probs=arrays["top_log_probs"][row : row + num_answer],
        )

    def __iter__(self) -> Iterator[Answer]:
        return (self[index] for index in range(len(self)))


def complete_shards(folder: Path) -> list[int]:
    """Indices, ascending."""
    paths = folder.glob("shard-[0-9]*")
    return sorted(int(path.name[6:]) for path in paths if path.suffix == "")


def _records(folder: Path, index: int) -> np.ndarray:
    return np.asarray(np.load(shard_folder(folder, index) / "answers.npy"))


@lru_cache(maxsize=_OPEN_SHARDS)
def _arrays(shard: Path) -> dict[str, np.ndarray]:
    names = ("token_ids", "hidden_states", "top_ids", "top_log_probs")
    return {name: np.load(shard / f"{name}.npy", mmap_mode="r") for name in names}
