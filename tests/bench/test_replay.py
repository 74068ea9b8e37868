"""A replay counts exactly what the engine would have counted."""

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from training.drafter_corpus import make_drafter

from bench.acceptance import acceptance
from bench.acceptance.replay import TextWriter
from bench.harness.benchmark import Options
from bench.harness.local_engine import LocalEngine
from bench.harness.prompts import Prompt
from canopy.config import CacheConfig, Deployment, DrafterConfig, LimitsConfig, TargetConfig
from canopy.models.block_drafter.checkpoint import save_drafter
from canopy.verifier.construction import make_verifier

PROMPTS = [
    Prompt("qa", "abcabcabcabc"),
    Prompt("code", "for i in x: for i in y:"),
    Prompt("qa", "to be or not to be"),
    Prompt("long", "what is said again is said again and " * 8),
]
ARGUMENTS = Namespace(
    policies=["chain", "topn"],
    node_budgets=[16],
    temperatures=[0.0, 0.7],
    modes=["coupled", "rejection"],
    max_tokens=16,
    sources=["lookup", "neural", "all", "autoregressive"],
    drafter=None,
    small_drafter=None,
    replay=False,
    texts=None,
    real_limit=None,
    draft_share=False,
    plots=None,
)


@pytest.fixture(scope="module")
def options(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter")
    save_drafter(make_drafter(tiny_folder), folder)
    deployment = Deployment(
        # int8: rows do not depend on what is computed beside them.
        target=TargetConfig(model=str(tiny_folder), dtype="int8", num_threads=1),
        cache=CacheConfig(num_tokens=4096, prefix_reuse=False),
        limits=LimitsConfig(max_running=3, max_step_tokens=96),  # the long prompt in parts
    )
    arguments = Namespace(**vars(ARGUMENTS) | {"drafter": folder, "small_drafter": tiny_folder})
    return Options(deployment, PROMPTS, is_quick=True, arguments=arguments)


def replayed(options, **changes):
    arguments = Namespace(**vars(options.arguments) | {"replay": True} | changes)
    return acceptance.run(replace(options, arguments=arguments))


@pytest.fixture(scope="module")
def pair(options):
    return acceptance.run(options), replayed(options)


def test_every_setting_of_a_replay_equals_the_engine(pair):
    real, replay = pair
    for title, records in real.details.items():
        pairs = zip(replay.details[title], records, strict=True)
        assert not [pair for pair in pairs if pair[0] != pair[1]], title
    assert replay.figures == real.figures
    (by_policy, *_) = real.details.values()
    own = [r for r in by_policy if r["sources"] == "autoregressive"]  # the target drafts for itself
    assert all(r["acceptance_length"] > 2.0 for r in own if r["mode"] == "greedy")


class Spy:
    """Passes on, and keeps the replies."""

    def __init__(self, verifier):
        self.verifier, self.replies = verifier, []

    def verify(self, request):
        self.replies.append(self.verifier.verify(request))
        return self.replies[-1]


def test_every_reply_of_a_replay_is_that_of_the_target(options, tiny_folder):
    drafter = DrafterConfig(source="markov", model=str(options.arguments.drafter))
    deployment = replace(options.deployment, drafter=drafter)
    writer = TextWriter([deployment])
    spies = Spy(make_verifier(deployment)), Spy(writer.replay())
    engines = [LocalEngine(deployment, spy) for spy in spies]
    for engine in engines:
        requests = [
            engine.chat_request(prompt.text, temperature=0.0, max_tokens=12, speculation="topn")
            for prompt in PROMPTS
        ]
        writer.write(requests)
        engine.run(requests)
    real, replay = (spy.replies for spy in spies)
    assert len(real) == len(replay) > 12
    for name in ("status", "emitted_token_ids", "num_accepted", "finish", "hidden_state_starts",
                 "hidden_state_lengths", "hidden_states"):  # fmt: skip
        for ours, theirs in zip(replay, real, strict=True):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)


def test_the_figures_have_the_names_of_the_bars(pair):
    figures = pair[1].figures
    for name in ("chain_tau", "tree16_tau", "neural16_tau", "rejection_t0.7_tau"):
        assert figures[name] >= 1.0
    assert figures["tree16_tau"] == figures["all16_tau"]
    chain, tree = figures["autoregressive_chain_tau"], figures["autoregressive16_tau"]
    gain = figures["autoregressive16_accept_gain"]
    assert gain == pytest.approx((tree - 1.0) / (chain - 1.0))


def test_depths_add_up_to_what_was_accepted(pair):
    by_policy, _, by_depth = pair[1].details.values()
    for index, record in enumerate(by_policy):
        own = by_depth[index * 16 : index * 16 + 16]
        shares = [depth["share_of_rounds"] for depth in own]
        assert sum(shares) == pytest.approx(record["acceptance_length"] - 1.0)
        assert shares == sorted(shares, reverse=True)


def test_what_no_replay_serves_may_have_fewer_prompts_and_plots_are_drawn(options, tmp_path):
    result = replayed(
        options,
        sources=["lookup"],
        policies=["topn"],
        real_limit=1,
        temperatures=[0.0, 1.0],
        plots=tmp_path,
    )
    by_policy, by_category, _ = result.details.values()
    rounds = {record["mode"]: record["rounds"] for record in by_policy}
    assert 0 < rounds["rejection"] < rounds["coupled"]
    assert {r["category"] for r in by_category if r["mode"] == "rejection"} == {"qa"}
    assert {path.name for path in tmp_path.iterdir()} == {
        "acceptance-by-depth.svg",
        "acceptance-by-nodes.svg",
    }


def test_the_draft_stage_is_timed_beside_the_verify_step(options):
    result = replayed(
        options,
        sources=["lookup", "autoregressive"],
        policies=["topn"],
        node_budgets=[4],
        temperatures=[0.0],
        draft_share=True,
    )
    figures = result.figures
    share = figures["autoregressive_draft_ms"] / figures["autoregressive_verify16_ms"]
    assert figures["autoregressive_draft_over_verify16"] == pytest.approx(share)
    assert share > 0.0


def test_kept_texts_are_not_written_again_and_count_the_same(options, tmp_path, monkeypatch):
    changes = {"sources": ["neural"], "policies": ["topn"], "temperatures": [0.0]}
    changes["texts"] = tmp_path / "texts.npz"
    first = replayed(options, **changes)
    # Who would write has no target.
    monkeypatch.setattr("bench.acceptance.replay.make_verifier", None)
    assert replayed(options, **changes).details == first.details
    with pytest.raises(TypeError):  # texts with features of another drafter do not serve
        replayed(options, **changes | {"sources": ["lookup"]})
