"""Many requests at once."""

from wire import Stream

NUM_STREAMS = 32
WORDS = ["river ", "abcabc", "漢字", "x = f(x)\n", "🌳", "the cat sat on the mat. ", "1, 2, 3, 4, "]


def run_together(url: str, requests: list[tuple[str, dict]], **extra: object) -> list[str]:
    """All at once, over four gRPC streams."""
    streams = [Stream(url) for _ in range(4)]
    for index, (prompt, options) in enumerate(requests):
        streams[index % 4].send(prompt, request_id=str(index), **options, **extra)
    answers = {}
    for number, stream in enumerate(streams):
        answers |= stream.collect(count=len(requests[number::4]), timeout_s=120)
        stream.close()
    assert [a.error for a in answers.values() if a.error] == []
    return [answers[str(index)].text for index in range(len(requests))]
