"""transformers' generate as a peer, float32, on the folder that our server loads.

It serves no requests: several at once are one static batch, which its assisted decoding refuses.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peers.arm import Answer, Arm, ChatPrompt
from bench.peers.environment import peers_home, project_requirement, python_with
from bench.peers.process import START_TIMEOUT_S, PeerProcess, all_cores

PLAIN = "transformers"
LOOKUP = "transformers_lookup"
LOOKUP_TOKENS = 10  # the value of its documentation
ANSWER_TIMEOUT_S = 600.0
_SCRIPT = Path(__file__).with_name("hf_transformers_worker.py")


@contextmanager
def transformers_arms(folder: Path) -> Iterator[list[Arm]]:
    """Plain and prompt-lookup decoding of one process. Raises CannotRun."""
    python = python_with(project_requirement("transformers"))
    settings = {"folder": str(folder), "threads": all_cores()}
    with PeerProcess(python, _SCRIPT, settings, peers_home() / "transformers.log") as process:
        process.receive(START_TIMEOUT_S)

        def arm(name: str, lookup_tokens: int, max_concurrency: int) -> Arm:
            def answer(prompts: Sequence[ChatPrompt], num_tokens: int) -> list[Answer]:
                process.send(
                    {
                        "prompts": [prompt.token_ids for prompt in prompts],
                        "num_tokens": num_tokens,
                        "lookup_tokens": lookup_tokens,
                    }
                )
                return [Answer(**process.receive(ANSWER_TIMEOUT_S))] * len(prompts)

            return Arm(name, answer, process.group, max_concurrency)

        yield [arm(PLAIN, 0, 1 << 30), arm(LOOKUP, LOOKUP_TOKENS, 1)]
