"""What was learned lasts over restarts and crashes, and belongs to one deployment."""

import stat
from dataclasses import replace

import numpy as np
import pytest

from canopy.cli.serve import with_learning
from canopy.config import Deployment, DrafterConfig, ServerConfig, TargetConfig
from canopy.drafter.lookup.learned_answers import LearnedAnswers, learned_answers_path
from canopy.drafter.lookup.online_ngrams import OnlineNgrams
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.drafter.source_choice import make_source
from canopy.errors import InvalidDeployment
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings
from canopy_kernels.ngram.ngram_table import empty_ngram_table

PROMPT = [1, 2, 3]


def text(*answer):
    return np.array([*PROMPT, *answer], np.int32)


def kept(path, max_tokens=1000):
    return [(ids.tolist(), num) for ids, num in LearnedAnswers(path, max_tokens).texts]


def test_a_later_process_knows_what_an_earlier_one_served(tmp_path):
    path = tmp_path / "learned" / "a.answers"
    first = OnlineNgrams(empty_ngram_table(), file=LearnedAnswers(path, 1000))
    first.learn(text(7, 8), 3)
    first.learn(text(), 3)
    assert len(first.ngrams.keys) == 0  # there are too few to count them yet
    del first
    second = OnlineNgrams(empty_ngram_table(), file=LearnedAnswers(path, 1000))
    assert {7, 8} <= set(second.ngrams.follower_ids.tolist())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_latest_stay(tmp_path):
    path = tmp_path / "a.answers"
    file = LearnedAnswers(path, 1000)
    for token in range(10):
        file.append((text(token), 3))
    del file
    assert [ids[-1] for ids, _ in kept(path, max_tokens=13)] == [7, 8, 9]
    assert [ids[-1] for ids, _ in kept(path)] == [7, 8, 9]


@pytest.mark.parametrize("damage", [b"\1", b"\3\0\0\0\5\0\0\0\1\0\0\0", b"\xff" * 8, b"\0" * 8])
def test_a_record_cut_short_costs_itself_alone(tmp_path, damage):
    path = tmp_path / "a.answers"
    file = LearnedAnswers(path, 1000)
    file.append((text(5, 6), 3))
    del file
    with path.open("ab") as content:
        content.write(damage)
    file = LearnedAnswers(path, 1000)
    file.append((text(7), 3))
    del file
    assert kept(path) == [([1, 2, 3, 5, 6], 3), ([1, 2, 3, 7], 3)]


def test_a_file_belongs_to_one_process_and_a_deployment_to_one_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path))
    own = Deployment()
    others = [
        replace(own, target=TargetConfig(model="another")),
        replace(own, server=ServerConfig(grpc_port=9001)),
    ]
    paths = {learned_answers_path(d, "v") for d in (own, *others)}
    assert len(paths | {learned_answers_path(own, "w")}) == 4
    held = LearnedAnswers(learned_answers_path(own, "v"), 1000)
    with pytest.raises(BlockingIOError):
        LearnedAnswers(learned_answers_path(own, "v"), 1000)
    assert held.texts == []


def drafted(source, token_ids):
    settings = PolicySettings(PolicyName.CHAIN, 2, 2, 1, 0.05)
    [proposal] = source.propose(
        [DraftTask(DraftSequence(len(token_ids), token_ids, SamplingParams()), settings)]
    )
    return proposal.tree.token_ids[1:].tolist()


def test_a_deployment_learns_where_it_is_on(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path))
    for value, expected in (("on", [8, 9]), ("off", []), ("auto", [])):
        drafter = DrafterConfig(ngrams="", learn_online=value)
        own = Deployment(target=TargetConfig(model=str(tiny_folder)), drafter=drafter)
        for _ in range(2):
            source, _ = make_source(own)
            found = drafted(source, [5, 7])
            served = DraftSequence(1, [*PROMPT], SamplingParams())
            settings = PolicySettings(PolicyName.CHAIN, 2, 2, 1, 0.05)
            source.propose([DraftTask(served, settings)])
            served.token_ids += [7, 8, 9]
            source.propose([DraftTask(served, settings)])
            source.finish(1)
            del source
        assert found == expected


def test_a_server_for_this_machine_alone_learns_by_itself():
    for host, expected in (("127.0.0.1", "on"), ("::1", "on"), ("0.0.0.0", "off"), ("a.b", "off")):
        own = Deployment(server=ServerConfig(host=host))
        assert with_learning(own).drafter.learn_online == expected
        for chosen in ("on", "off"):
            own = Deployment(
                server=ServerConfig(host=host), drafter=DrafterConfig(learn_online=chosen)
            )
            assert with_learning(own) == own
    with pytest.raises(InvalidDeployment, match="learn_online"):
        DrafterConfig(learn_online="sometimes")
