"""What the draft stage costs beside a verify step of the tree it drafted, one stream, in turn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.harness.local_engine import LocalEngine
from bench.harness.prompts import Prompt, spread
from canopy.config import Deployment

_NODES = 16
_NUM_PROMPTS = 9
_MAX_TOKENS = 64


def draft_share(deployment: Deployment, prompts: Sequence[Prompt], name: str) -> dict[str, float]:
    """Medians over the steps that verified a tree of 16 nodes; each step drafts, then verifies.

    name: before those of the figures; "": none. No figures where no step had such a tree.
    """
    alone = replace(deployment, limits=replace(deployment.limits, max_running=1))
    engine = LocalEngine(alone)
    requests = [
        engine.chat_request(
            prompt.text,
            temperature=0.0,
            max_tokens=_MAX_TOKENS,
            speculation="topn",
            node_budget=_NODES,
        )
        for prompt in spread(prompts, _NUM_PROMPTS)
    ]
    readings = [_read(engine)]
    engine.run(requests, after_step=lambda: readings.append(_read(engine)))
    steps = np.diff(np.array(readings), axis=0)
    whole = steps[steps[:, 2] == _NODES]
    if not len(whole):
        return {}
    draft, verify, _ = np.median(whole, axis=0).tolist()
    prefix = f"{name}_" if name else ""
    return {
        f"{prefix}draft_ms": 1e3 * draft,
        f"{prefix}verify16_ms": 1e3 * verify,
        f"{prefix}draft_over_verify16": draft / verify,
    }


def _read(engine: LocalEngine) -> tuple[float, float, int]:
    """Seconds of drafting and of verifying, and nodes drafted, so far."""
    seconds = engine.metrics.stage_seconds
    return seconds["draft"], seconds["verify"], engine.metrics.num_drafted_nodes
