"""The simulator: conservation, the truth of its text, and what load does to trees."""

from argparse import Namespace

import numpy as np
import pytest

from bench.harness.benchmark import Options
from bench.simulation import simulate
from bench.simulation.costs import ACCELERATORS, LLAMA_8B, roofline
from bench.simulation.server import Arm, Machine, Simulation
from bench.simulation.text import Text, Texts
from canopy.config import Deployment
from canopy.costs.cost_model import CostModel
from canopy.sampling import PolicyName

LINE = CostModel((1,), (1, 101), ((10.0, 110.0),))
MACHINE = Machine(LINE, 0.0, 0.0, 1.0, noise=0.0)
PLAIN, CHAIN = Arm("plain", PolicyName.OFF, 0), Arm("chain", PolicyName.CHAIN, 3)
PRICED = Arm("priced", PolicyName.PRICED, 16)


def texts(is_chain, error=0.0):
    return Texts(16, is_chain, error, seed=2)


def simulated(arm, streams, num_jobs=6, machine=MACHINE, rate=None):
    jobs = simulate._jobs(num_jobs, 40, rate)
    wanted = [job.num_left for job in jobs]
    own = texts(arm.policy is PolicyName.CHAIN)
    return Simulation(machine, arm, own, streams).run(jobs), wanted


@pytest.mark.parametrize("arm", [PLAIN, CHAIN, PRICED], ids=lambda arm: arm.name)
@pytest.mark.parametrize("streams", [1, 4])
def test_every_token_that_was_asked_for_is_written_once(arm, streams):
    run, wanted = simulated(arm, streams)
    assert run.num_tokens == sum(wanted)
    assert run.num_tokens <= run.num_rounds + run.num_accepted
    assert all(job.arrival_ms < job.first_ms <= job.end_ms <= run.end_ms for job in run.jobs)
    assert max(running for _, running, _ in run.trace) <= streams


def test_plain_decoding_takes_what_the_cost_model_says():
    run, wanted = simulated(PLAIN, 1, num_jobs=1)
    prompt_ms = float(LINE.predict_ms(np.array([200]), 1)[0])
    assert run.end_ms == pytest.approx(prompt_ms + 1.0 + (wanted[0] - 1) * 11.0)


def test_nodes_come_true_as_often_as_they_say():
    pool, text = texts(is_chain=False), Text(seed=3)
    expected = accepted = 0.0
    for _ in range(4000):
        template = pool.proposal(text)
        survivals = [1.0]
        for node in range(1, len(template.parents)):
            edge = float(np.exp(template.log_probs[node]))
            survivals.append(survivals[template.parents[node]] * edge)
        expected += sum(survivals[1:])
        accepted += text.accepted(template, set(range(1, len(survivals))))
    assert accepted == pytest.approx(expected, rel=0.04)


def test_an_error_bends_what_is_reported_and_not_what_comes_true():
    true, bent = texts(False), texts(False, error=1.0)
    text = Text(seed=4)
    template = true.proposal(text)
    twin = bent.proposal(Text(seed=4))
    assert template.acceptances == twin.acceptances
    assert np.all(twin.log_probs[1:] > template.log_probs[1:])


def test_trees_shrink_as_sequences_share_the_step():
    nodes = []
    for streams in (1, 8, 64):
        run, _ = simulated(PRICED, streams, num_jobs=2 * streams)
        nodes.append(run.num_nodes / run.num_rounds)
    assert nodes[0] > nodes[1] > nodes[2]


def test_requests_of_a_poisson_stream_wait_for_their_place():
    run, _ = simulated(PLAIN, 1, num_jobs=8, rate=1.0)
    starts = [job.first_ms for job in run.jobs]
    assert starts == sorted(starts)
    assert run.jobs[-1].first_ms > run.jobs[-1].arrival_ms + 1000.0


def test_a_roofline_is_flat_until_arithmetic_is_the_limit():
    model = roofline(ACCELERATORS["a100"], LLAMA_8B)
    few, more, many = model.predict_ms(np.array([1, 64, 2048]), 1)
    assert few == pytest.approx(more)
    assert many > 5.0 * few
    padded = roofline(ACCELERATORS["a100"], LLAMA_8B, is_step_function=True)
    assert padded.predict_ms(np.array([300]), 1) >= model.predict_ms(np.array([300]), 1)


def test_every_machine_load_and_arm_is_reported(tmp_path):
    pytest.importorskip("matplotlib")
    arguments = Namespace(
        machines=["h100-padded"], profile=None, streams=[1], error=0.0, plots=tmp_path / "plots"
    )
    result = simulate.run(Options(Deployment(), [], is_quick=True, arguments=arguments))
    closed, opened = result.details.values()
    assert {record["arm"] for record in closed} == {arm.name for arm in simulate.ARMS}
    assert all(record["p50_s"] <= record["p99_s"] for record in opened)
    assert set(result.figures) == {
        "priced_over_best_min_h100-padded",
        "priced_over_plain_min_h100-padded",
    }
    assert [path.suffix for path in (tmp_path / "plots").iterdir()] == [".svg"]
