"""The streams behind one request, without a server."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from canopy_client import Chunk, ServerFailure
from canopy_gateway import server
from canopy_gateway.answers import Admission, Answers
from canopy_gateway.errors import APIError


def chunk(text: str, is_last: bool = False) -> Chunk:
    reason = "length" if is_last else None
    return Chunk(text, 1, 5, reason, {"rounds": 1} if is_last else None, is_last, ({"round": 1},))


class FakeStream:
    """Gives out its chunks as fast as they are taken, and then an error where there is one."""

    def __init__(self, chunks: Sequence[Chunk], error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error
        self.is_open = False
        self.completion = SimpleNamespace(num_output_tokens=len(chunks))

    async def __aenter__(self) -> "FakeStream":
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False

    async def __aiter__(self):
        for each in self._chunks:
            yield each
        if self._error is not None:
            raise self._error


async def opened(streams: list[FakeStream]) -> Answers:
    return await Answers.open([lambda s=s: s for s in streams], lambda: None)


async def let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_nobody_reads_grows_into_one_piece_a_choice():
    async def run() -> None:
        words = [f"{number} " for number in range(1000)]
        chunks = [chunk(word) for word in words] + [chunk("end", is_last=True)]
        streams = [FakeStream(chunks), FakeStream(chunks)]
        answers = await opened(streams)
        await let_others_run()
        pieces = [await answers.next(), await answers.next()]
        assert answers.has_ended
        for index, piece in enumerate(pieces):
            assert (piece.index, piece.chunk.text) == (index, "".join(words) + "end")
            assert piece.chunk.num_tokens == len(piece.chunk.rounds) == 1001
            assert (piece.chunk.finish_reason, piece.chunk.is_last) == ("length", True)
        await answers.close()
        assert not any(stream.is_open for stream in streams)

    asyncio.run(run())


def test_an_error_comes_after_the_text_before_it():
    async def run() -> None:
        answers = await opened([FakeStream([chunk("a")], ServerFailure("broke"))])
        await let_others_run()
        assert (await answers.next()).chunk.text == "a"
        with pytest.raises(ServerFailure, match="broke"):
            await answers.next()
        await answers.close()

    asyncio.run(run())


def test_waiting_for_the_first_piece_loses_nothing_and_raises_what_comes_first():
    async def run() -> None:
        answers = await opened([FakeStream([chunk("a"), chunk("b", is_last=True)])])
        await answers.wait_for_first(10.0)
        text = ""
        while not answers.has_ended:
            text += (await answers.next()).chunk.text
        assert text == "ab"
        refused = await opened([FakeStream([], ServerFailure("no"))])
        with pytest.raises(ServerFailure, match="no"):
            await refused.wait_for_first(10.0)

    asyncio.run(run())


def test_silence_gives_no_piece():
    class Silent(FakeStream):
        async def __aiter__(self):
            await asyncio.Event().wait()
            yield chunk("never")

    async def run() -> None:
        answers = await opened([Silent([])])
        assert await answers.next(timeout_s=0.01) is None
        assert not answers.has_ended
        await answers.close()

    asyncio.run(run())


def test_places_are_counted_over_all_and_by_key():
    admission = Admission(limit=3, limit_per_key=2, retry_after_s=1)
    leave = admission.enter(2, "one")
    with pytest.raises(APIError, match="for this API key"):
        admission.enter(1, "one")
    admission.enter(1, "two")
    with pytest.raises(APIError, match="3 answers are under way, at most 3"):
        admission.enter(1, "three")
    leave()
    admission.enter(2, "one")


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to", "expected"),
    [(5000, 5000, None, 1000), (256, 5000, 1064, 1000), (256, 512, 512, 256)],
)
def test_no_more_connections_than_open_files(monkeypatch, soft, hard, raised_to, expected):
    raised = []
    monkeypatch.setattr(server.resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(server.resource, "setrlimit", lambda kind, limits: raised.append(limits))
    assert server._possible(1000) == expected
    assert raised == ([] if raised_to is None else [(raised_to, hard)])
