"""What the engine tells probes, and how it stops: nothing is lost that it was able to finish."""

import threading
from dataclasses import replace

import pytest
from toys import CollectingSink, Pipeline, continuation, decode, make_request
from waiting import wait_until

from canopy.engine.loop import Engine
from canopy.engine.stage_health import STAGES
from canopy.errors import CanopyError, ServerStopping, StageFailed, Unavailable

PROMPT = [3, 1, 4]


class Running:
    """A toy pipeline whose engine runs on a thread of its own; its stages can be held up."""

    def __init__(self, **limits: int) -> None:
        self.pipeline = Pipeline(**limits)
        self.hold = threading.Event()  # set: calls and pings of the verifier go through
        self.hold.set()
        self.dead: set[str] = set()
        self.num_broken_restarts = 0
        engine = self.pipeline.engine
        engine._stages = replace(engine._stages, ping=self.ping, verifier=self)
        engine._stage_health._restart = self.restart
        self.engine: Engine = engine
        self.thread = threading.Thread(target=engine.run, daemon=True)
        self.thread.start()

    def ping(self, stage):
        if stage == "verifier":
            self.hold.wait()
        if stage in self.dead:
            raise StageFailed(stage, "its process is gone")

    def verify(self, request):
        self.hold.wait()
        if "verifier" in self.dead:
            raise StageFailed("verifier", "its process is gone")
        return self.pipeline.verifier.verify(request)

    def restart(self, stage):
        if self.num_broken_restarts:
            self.num_broken_restarts -= 1
            raise CanopyError("no memory yet")
        self.pipeline.restarted.append(stage)
        self.dead.discard(stage)

    def status(self):
        return self.engine.health(self.thread.is_alive()).status

    def becomes(self, status, timeout_s=20.0):
        return wait_until(lambda: self.status() == status, timeout_s=timeout_s)

    def submit(self, **options):
        sink = CollectingSink()
        self.engine.submit(make_request(PROMPT, stream=True, **options), sink)
        return sink


@pytest.fixture
def running():
    pipelines = []

    def start(**limits):
        pipelines.append(Running(**limits))
        assert pipelines[-1].becomes("ready")
        return pipelines[-1]

    yield start
    for pipeline in pipelines:
        pipeline.hold.set()
        pipeline.engine.stop()
        pipeline.thread.join(timeout=10)


def test_before_every_stage_was_there_the_engine_is_alive_and_loading():
    pipeline = Pipeline()
    health = pipeline.engine.health()
    assert (health.is_alive, health.is_ready, health.status) == (True, False, "loading")
    assert health.stages == dict.fromkeys(STAGES, "loading")


def test_a_full_queue_is_alive_and_busy_and_room_makes_it_ready(running):
    service = running(max_running=1, max_waiting=1)
    service.hold.clear()
    sinks = [service.submit(), service.submit()]
    health = service.engine.health()
    assert (health.is_alive, health.is_ready, health.num_places) == (True, False, 0)
    assert health.status in ("busy", "silent")
    service.hold.set()
    assert service.becomes("ready")
    assert wait_until(lambda: all(sink.is_ended for sink in sinks), timeout_s=20)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_dies_while_nothing_runs_is_brought_back(running, stage):
    service = running()
    service.dead.add(stage)
    assert wait_until(lambda: service.pipeline.restarted == [stage], timeout_s=20)
    assert service.becomes("ready")


def test_a_hung_stage_shows_and_a_long_silence_is_the_end(running, monkeypatch):
    service = running()
    service.hold.clear()
    assert service.becomes("silent")
    assert service.engine.health().stages["verifier"] == "silent"
    monkeypatch.setattr("canopy.engine.health.STUCK_AFTER_S", 0.5)
    assert service.becomes("broken")
    assert not service.engine.health().is_alive
    service.hold.set()
    assert service.becomes("ready")


def test_a_reload_that_fails_is_tried_again_and_no_stream_breaks(running):
    service = running()
    service.num_broken_restarts = 2
    service.dead.add("verifier")
    sink = service.submit()
    assert wait_until(lambda: sink.is_ended, timeout_s=30)
    assert sink.text == decode(continuation(PROMPT, 12))
    assert service.pipeline.restarted == ["verifier"]
    assert service.engine.metrics.num_stage_failures["verifier"] == 3


def test_requests_can_be_cancelled_while_the_verifier_is_loaded(running):
    service = running()
    service.num_broken_restarts = 1000
    service.dead.add("verifier")
    sink = service.submit()
    assert service.becomes("loading")
    sink.cancelled = True
    assert wait_until(lambda: sink.is_ended, timeout_s=20)
    assert sink.error.code == "cancelled"


def test_a_verifier_that_never_comes_back_is_the_end(running, monkeypatch):
    monkeypatch.setattr("canopy.engine.stage_health._MAX_PAUSE_S", 0.01)
    service = running()
    service.num_broken_restarts = 1000
    service.dead.add("verifier")
    assert service.becomes("broken")
    assert "could not be loaded again" in service.engine.health().reason


def test_a_request_is_left_from_its_acceptance_to_its_last_response(running):
    service = running()
    service.hold.clear()
    sink = service.submit()
    service.engine.drain()
    assert service.engine.health().num_left == 1  # inside its first step
    with pytest.raises(Unavailable, match="shutting down"):
        service.submit()
    service.hold.set()
    assert wait_until(lambda: service.engine.health().num_left == 0, timeout_s=20)
    assert sink.text == decode(continuation(PROMPT, 12))
    assert service.status() == "stopping"


def test_what_ends_because_the_server_stops_is_unavailable(running):
    service = running()
    service.hold.clear()
    sinks = [service.submit(), service.submit()]
    service.engine.stop()
    service.dead.add("verifier")
    service.hold.set()
    assert wait_until(lambda: all(sink.is_ended for sink in sinks), timeout_s=20)
    assert {sink.error.code for sink in sinks} == {"unavailable"}


def test_a_server_that_ends_its_stages_ends_the_engine(running):
    service = running()

    def verify(request):
        raise ServerStopping("verifier", "Server is stopping")

    service.verify = verify
    sink = service.submit()
    service.thread.join(timeout=20)
    assert sink.error.code == "unavailable"
    assert service.pipeline.restarted == []


def test_what_one_sequence_raises_in_the_engine_ends_that_one():
    pipeline = Pipeline()
    sinks = [pipeline.submit(PROMPT, stream=True) for _ in range(3)]

    def broken(delta):
        raise RuntimeError("no luck")

    sinks[1].send = broken
    pipeline.run()
    assert [sink.text for sink in sinks[::2]] == [decode(continuation(PROMPT, 12))] * 2
    assert sinks[1].error.code == "internal"
    assert pipeline.engine.health().num_left == 0
