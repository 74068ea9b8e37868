"""The engine over the real stages, called directly, on a tiny model."""

import itertools
from pathlib import Path

import pytest
from replay import assert_same_or_tied
from toys import CollectingSink

from canopy.config import (
    POLICIES,
    CacheConfig,
    Deployment,
    DrafterConfig,
    LimitsConfig,
    TargetConfig,
)
from canopy.drafter.stage import make_drafter
from canopy.engine.loop import Engine
from canopy.engine.stages import Stages
from canopy.errors import InvalidDeployment
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.limits import engine_limits, model_limits
from canopy.frontend.request_parser import RequestParser
from canopy.text.tokenizer import Tokenizer
from canopy.tree_builder.stage import make_tree_builder
from canopy.verifier.construction import make_verifier

PROMPTS = ["abcabcabcabc", "the cat sat on the mat. the cat", "漢字漢字漢", "x", "1, 2, 3, 4, " * 9]


class DirectPipeline:
    """One deployment served without a server."""

    def __init__(self, folder: Path, dtype: str, num_threads: int = 0, **tables: object) -> None:
        target = TargetConfig(model=str(folder), dtype=dtype, num_threads=num_threads)
        deployment = Deployment(target=target, **tables)
        tokenizer = Tokenizer(folder)
        self.verifier = make_verifier(deployment)
        stages = Stages(make_drafter(deployment), make_tree_builder(deployment), self.verifier)
        self.engine = Engine(stages, engine_limits(deployment), tokenizer.decode)
        self.decode = tokenizer.decode
        limits = model_limits(folder, tokenizer)
        self.parse = RequestParser(deployment, limits, tokenizer).parse

    def answers(self, **parameters: object) -> list[str]:
        """The texts of all prompts, served together; then every block is free again."""
        sinks = []
        for seed, prompt in enumerate(PROMPTS):
            given = {"seed": seed, "max_tokens": 40, "ignore_eos": True} | parameters
            sinks.append(CollectingSink())
            client = ClientRequest(prompt.encode(), stream=True, request_parameters=given)
            self.engine.submit(self.parse(client), sinks[-1])
        while self.engine.has_work:
            self.engine.step()
        blocks = self.verifier.blocks
        blocks.check_integrity()
        assert (blocks.num_used, blocks.num_free) == (0, blocks.num_blocks)
        assert [sink.error for sink in sinks] == [None] * len(PROMPTS)
        return [sink.text for sink in sinks]


def assert_plain_text(
    folder: Path, dtype: str, texts: list[str], plain: list[str], temperature: float
):
    """Every text is the plain one, or (float32) parts from it at a tie of the target."""
    if dtype == "int8":
        assert texts == plain
    for seed, (prompt, text, other) in enumerate(zip(PROMPTS, texts, plain, strict=True)):
        options = {"temperature": temperature, "seed": seed}
        assert_same_or_tied(folder, prompt, options, text, other)


@pytest.fixture(scope="module", params=["float32", "int8"])
def dtype(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def plain(tiny_folder, dtype) -> dict[float, list[str]]:
    """What the target says without speculation, by temperature."""
    pipeline = DirectPipeline(tiny_folder, dtype)
    return {t: pipeline.answers(temperature=t, speculation="off") for t in (0.0, 0.9)}


@pytest.fixture(scope="module")
def pipelines(tiny_folder, dtype) -> dict[str, DirectPipeline]:
    itself = DrafterConfig(source="autoregressive", model=str(tiny_folder))
    return {
        "lookup": DirectPipeline(tiny_folder, dtype),
        "itself": DirectPipeline(tiny_folder, dtype, drafter=itself),
    }


# Where texts are exact, all; where a tie may part them, a few.
SPECULATIONS = [
    *itertools.product(["int8"], ["lookup", "itself"], POLICIES, [0.0, 0.9]),
    ("float32", "lookup", "priced", 0.0),
    ("float32", "itself", "topn", 0.9),
]


@pytest.mark.parametrize(
    ("dtype", "source", "policy", "temperature"), SPECULATIONS, indirect=["dtype"]
)
def test_no_policy_and_no_source_changes_the_text(
    pipelines, plain, tiny_folder, dtype, source, policy, temperature
):
    texts = pipelines[source].answers(temperature=temperature, speculation=policy, node_budget=10)
    assert_plain_text(tiny_folder, dtype, texts, plain[temperature], temperature)


@pytest.mark.parametrize(
    "tables",
    [
        {"limits": LimitsConfig(max_step_tokens=3)},
        {"limits": LimitsConfig(max_running=1)},
        {"cache": CacheConfig(num_tokens=2048, prefix_reuse=False)},
        {"cache": CacheConfig(num_tokens=2048, block_size=48)},
    ],
    ids=["small-chunks", "one-by-one", "no-prefix-reuse", "other-blocks"],
)
def test_no_limit_of_a_deployment_changes_the_text(tiny_folder, dtype, plain, tables):
    texts = DirectPipeline(tiny_folder, dtype, **tables).answers(temperature=0.9)
    assert_plain_text(tiny_folder, dtype, texts, plain[0.9], 0.9)


def test_float32_takes_blocks_of_any_size(tiny_folder):
    cache = CacheConfig(num_tokens=2048, block_size=5)
    texts = [
        DirectPipeline(tiny_folder, "float32", **tables).answers(temperature=0.9)
        for tables in ({"cache": cache}, {})
    ]
    assert_plain_text(tiny_folder, "float32", *texts, 0.9)


def test_int8_refuses_a_block_size_that_it_cannot_address(tiny_folder):
    with pytest.raises(InvalidDeployment, match="block_size must be a multiple of 16"):
        DirectPipeline(tiny_folder, "int8", cache=CacheConfig(num_tokens=2048, block_size=5))


def test_preemption_changes_no_text(tiny_folder, dtype, plain):
    pipeline = DirectPipeline(tiny_folder, dtype, cache=CacheConfig(num_tokens=160))
    texts = pipeline.answers(temperature=0.9)
    assert_plain_text(tiny_folder, dtype, texts, plain[0.9], 0.9)
    assert pipeline.engine.metrics.num_preempted > 0


def test_speculation_off_drafts_nothing(pipelines):
    before = pipelines["lookup"].engine.metrics.num_drafted_nodes
    pipelines["lookup"].answers(temperature=0.0, speculation="off")
    assert pipelines["lookup"].engine.metrics.num_drafted_nodes == before
