"""Requests are read beside the engine: what waits for what, who is counted, how reading ends."""

import threading
from types import SimpleNamespace

import pytest
from toys import CollectingSink, Pipeline, make_request
from waiting import wait_until

from canopy.engine.output import Delta
from canopy.errors import Cancelled, InvalidRequest, Unavailable
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.request_reader import LONG_BYTES, RequestReader, failure_of


class GatedParser:
    """Parses a long text when it may; notes the order."""

    def __init__(self):
        self.gate = threading.Event()
        self.parsed: list[bytes] = []

    def check_sizes(self, client):
        client.check_sizes(4 * LONG_BYTES)

    def parse(self, client):
        if client.num_bytes >= LONG_BYTES:
            assert self.gate.wait(30)
        self.parsed.append(client.text_input[:2])
        if client.text_input.startswith(b"!"):
            raise ValueError("no such prompt")
        return make_request([3, 1, 4])


def long(name: bytes) -> ClientRequest:
    return ClientRequest(text_input=name.ljust(LONG_BYTES))


def short(name: bytes) -> ClientRequest:
    return ClientRequest(text_input=name)


@pytest.fixture
def service():
    pipeline, parser = Pipeline(max_running=2, max_waiting=4), GatedParser()
    engine = pipeline.engine
    reader = RequestReader(parser, engine.reserve, engine.submit)
    yield SimpleNamespace(pipeline=pipeline, parser=parser, engine=engine, reader=reader)
    parser.gate.set()
    reader.close()


def read(service, client) -> CollectingSink:
    sink = CollectingSink()
    service.reader.read(client, sink)
    return sink


def test_long_prompts_hold_up_no_answer_and_no_short_prompt(service):
    held = [read(service, long(name)) for name in (b"L1", b"L2", b"L3", b"L4")]
    sinks = [read(service, short(name)) for name in (b"s1", b"s2")]
    assert wait_until(lambda: service.engine.health().num_running + len(service.parser.parsed) >= 2)
    service.pipeline.run()
    assert all(sink.finish_reason == "length" for sink in sinks)
    assert not any(sink.is_ended for sink in held)
    service.parser.gate.set()
    service.reader.close()
    service.pipeline.run()
    assert all(sink.finish_reason == "length" for sink in held)
    assert service.parser.parsed == [b"s1", b"s2", b"L1", b"L2", b"L3", b"L4"]


def test_what_is_being_read_has_its_place_and_is_left_to_be_answered(service):
    for name in (b"L1", b"L2", b"L3", b"L4", b"L5", b"L6"):
        read(service, long(name))
    health = service.engine.health()
    assert (health.num_left, health.num_waiting, health.num_places) == (6, 6, 0)
    with pytest.raises(Unavailable, match="6 wait already"):
        read(service, short(b"s"))
    service.engine.drain()
    service.parser.gate.set()
    service.reader.close()
    assert service.engine.health().num_left == 6
    service.pipeline.run()
    assert service.engine.health().num_left == 0


def test_a_place_is_given_back_by_what_cannot_be_read(service):
    sink = read(service, short(b"!"))
    assert wait_until(lambda: service.engine.health().num_left == 0)
    assert "no such prompt" in str(sink.error)
    with pytest.raises(InvalidRequest, match="text_input has"):
        read(service, ClientRequest(text_input=bytes(4 * LONG_BYTES + 1)))
    assert service.engine.health().num_left == 0


def test_what_was_cancelled_before_its_turn_is_not_read(service):
    read(service, long(b"L1"))
    sink = read(service, long(b"L2"))
    sink.cancelled = True
    service.parser.gate.set()
    service.reader.close()
    assert isinstance(sink.error, Cancelled)
    assert service.parser.parsed == [b"L1"]


def test_when_the_engine_ends_what_was_not_read_yet_is_told_so(service):
    sinks = [read(service, long(name)) for name in (b"L1", b"L2")]
    service.engine.stop()
    service.engine.run()
    service.parser.gate.set()
    service.reader.close()
    assert all(isinstance(sink.error, Unavailable) for sink in sinks)
    assert service.engine.health().num_left == 0


def test_other_work_waits_its_turn_and_takes_a_place(service):
    read(service, long(b"L1"))
    long_one, short_one = CollectingSink(), CollectingSink()
    service.reader.answer(lambda: Delta("L", 0, finish_reason="stop"), LONG_BYTES, long_one)
    service.reader.answer(lambda: Delta("s", 0, finish_reason="stop"), 1, short_one)
    assert wait_until(lambda: short_one.is_ended)
    assert not long_one.is_ended
    assert service.engine.health().num_waiting == 2
    service.parser.gate.set()
    assert wait_until(lambda: long_one.is_ended)
    assert (short_one.text, long_one.text) == ("s", "L")


def test_json_that_is_nested_too_deeply_is_the_clients_fault():
    assert isinstance(failure_of(RecursionError()), InvalidRequest)
