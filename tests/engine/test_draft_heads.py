"""The engine with published draft heads as source: text stays, acceptance is counted."""

from dataclasses import replace

import pytest
from engine.test_direct_stages import PROMPTS, DirectPipeline, assert_plain_text
from golden_heads import GOLDEN, knowing_head, servable_target

from canopy.config import DrafterConfig
from canopy.errors import InvalidDeployment

HEADS = ["eagle3-speculators", "dspark-speculators", "dflash-zlab"]


class Following:
    """A verifier that remembers which token followed which."""

    def __init__(self, verifier):
        self._verifier = verifier
        self.pairs = []

    def verify(self, request):
        reply = self._verifier.verify(request)
        emitted = iter(reply.emitted_token_ids.tolist())
        for anchor, num in zip(request.token_ids.tolist(), reply.num_emitted.tolist(), strict=True):
            self.pairs += [(anchor, next(emitted))] * num
        return reply


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return servable_target("dspark-deepspec", tmp_path_factory.mktemp("heads") / "target")


@pytest.fixture(scope="module")
def following(target):
    """(texts of plain decoding by temperature, pairs of greedy tokens)."""
    made = DirectPipeline(target, "int8", 1)
    following = Following(made.verifier)
    made.engine._stages = replace(made.engine._stages, verifier=following)
    texts = {0.0: made.answers(temperature=0.0, speculation="off")}
    pairs = list(following.pairs)
    return texts | {0.9: made.answers(temperature=0.9, speculation="off")}, pairs


@pytest.fixture(scope="module")
def plain(following):
    return following[0]


def pipeline(target, folder, source="auto", dtype="int8"):
    drafter = DrafterConfig(source=source, model=str(folder), num_threads=1)
    return DirectPipeline(target, dtype, num_threads=1, drafter=drafter)


@pytest.mark.parametrize("name", HEADS)
def test_no_head_changes_the_text_and_every_one_drafts(target, plain, name):
    made, metrics = pipeline(target, GOLDEN / name), []
    for temperature, policy in ((0.0, "topn"), (0.9, "priced")):
        texts = made.answers(temperature=temperature, speculation=policy, node_budget=8)
        assert texts == plain[temperature]
        metrics.append(made.engine.metrics.num_drafted_nodes)
    assert metrics[0] > 8 * 30 * len(PROMPTS)
    assert metrics[0] <= metrics[1]
    assert made.engine.metrics.num_failed_proposals == 0
    assert made.engine.metrics.source_failures == 0


def test_what_a_head_foresees_is_accepted(target, following, tmp_path):
    plain, pairs = following
    folder = knowing_head(pairs, tmp_path)
    accepted = {}
    for source in ("dspark", "all"):
        made = pipeline(target, folder, source)
        texts = made.answers(temperature=0.0, speculation="topn", node_budget=8)
        assert texts == plain[0.0]
        accepted[source] = made.engine.metrics.num_accepted_tokens
    assert min(accepted.values()) > 20 * len(PROMPTS)  # half of all tokens


def test_a_float_target_and_head_keep_the_text(target):
    plain = DirectPipeline(target, "float32", 1).answers(temperature=0.0, speculation="off")
    made = pipeline(target, GOLDEN / "eagle3-specforge", "eagle3", "float32")
    texts = made.answers(temperature=0.0, speculation="topn", node_budget=8)
    assert_plain_text(target, "float32", texts, plain, 0.0)


def test_a_shared_prefix_is_drafted_behind_as_any_other(target):
    """The target computes one matched block again, or an EAGLE-3 head would lack a row."""
    made = pipeline(target, GOLDEN / "eagle3-deepspec")
    counts = []
    for _ in range(2):
        made.answers(temperature=0.0, speculation="topn", node_budget=8)
        counts.append(made.engine.metrics.num_drafted_nodes)
    assert counts[1] == 2 * counts[0]


def test_the_wrong_source_is_refused(target):
    with pytest.raises(InvalidDeployment, match='"dflash" or "auto"'):
        pipeline(target, GOLDEN / "dflash-zlab", "eagle3")
