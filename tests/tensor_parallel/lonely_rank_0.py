"""Rank 0 of a group whose others join from elsewhere: prints scores, then why the group ended."""

import json
import sys

import numpy as np

from canopy.config import TargetConfig
from canopy.models.step_batch import Segment, assemble_step
from canopy.verifier.tensor_parallel.decoder import load_sharded


def scores_of(decoder) -> list[float]:
    """The logits after a short text."""
    cache = decoder.new_cache(4, 16)
    text = np.arange(40, 60)
    segment = Segment(0, [2, 0, 1], text, np.arange(len(text)) - 1, np.array([len(text) - 1]))
    return decoder.forward(assemble_step([segment], 16, "cpu"), cache)[0].tolist()


def main() -> None:
    decoder = load_sharded(TargetConfig(**json.loads(sys.argv[1])))
    print(json.dumps(scores_of(decoder)), flush=True)
    decoder.group.ended.wait()
    print(json.dumps(decoder.group.failure), flush=True)


if __name__ == "__main__":
    main()
