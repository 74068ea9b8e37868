"""transformers' generate in a process of its own; imports nothing of this project.

Its argument is JSON: folder, threads. A job is a line of JSON: prompts (lists of token ids),
num_tokens, lookup_tokens (0 is plain decoding). Its answer is one: the seconds to the first token
and in all. Several prompts are one static batch, padded on the left.
"""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria


class FirstToken(StoppingCriteria):
    """Never stops; takes the time at which the first tokens were known."""

    def __init__(self) -> None:
        self.time: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if self.time is None:
            self.time = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(settings["folder"], dtype=torch.float32)
    model.generation_config.pad_token_id = 0
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(model, json.loads(line))), flush=True)


def _answer(model: Any, job: dict[str, Any]) -> dict[str, Any]:
    prompts, num_tokens = job["prompts"], job["num_tokens"]
    length = max(len(prompt) for prompt in prompts)
    padding = [length - len(prompt) for prompt in prompts]
    token_ids = [[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * pad + [1] * (length - pad) for pad in padding]
    lookup = {"prompt_lookup_num_tokens": job["lookup_tokens"]} if job["lookup_tokens"] else {}
    first = FirstToken()
    start = time.perf_counter()
    output = model.generate(
        torch.tensor(token_ids),
        attention_mask=torch.tensor(mask),
        do_sample=False,
        min_new_tokens=num_tokens,
        max_new_tokens=num_tokens,
        stopping_criteria=[first],
        **lookup,
    )
    end = time.perf_counter()
    return {
        "first_token_s": (first.time or end) - start,
        "total_s": end - start,
        "num_tokens": output.shape[1] - length,
    }


if __name__ == "__main__":
    main()
