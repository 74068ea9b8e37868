"""Runs the arms of peers in turn over the same batches of prompts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.peers.arm import Arm, CannotRun, ChatPrompt
from bench.peers.samples import Sample, Samples, arm_order, batches


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    concurrencies: list[int]  # requests sent at once, one measurement each
    num_repeats: int
    num_tokens: int  # of every answer

    def num_steps(self, num_prompts: int, num_arms: int) -> int:
        """Batches answered, by all arms, the first ones that warm up included."""
        num_batches = sum(-(-num_prompts // count) for count in self.concurrencies)
        return num_arms * (self.num_repeats * num_batches + len(self.concurrencies))


@dataclass
class InterleavedRun:
    """Samples of all arms; an arm that fails leaves its reason and no sample there."""

    arms: Sequence[Arm]
    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # by arm and concurrency

    def run(self, prompts: Sequence[ChatPrompt], advance: Callable[[], None]) -> Samples:
        """Measure; `advance` is called after every batch. Samples come in the order of the arms."""
        for concurrency in self.plan.concurrencies:
            self._run_at(concurrency, batches(prompts, concurrency), advance)
        places = {arm.name: place for place, arm in enumerate(self.arms)}
        return Samples(sorted(self.samples, key=lambda sample: places[sample.arm]))

    def _run_at(
        self, concurrency: int, batches: list[list[ChatPrompt]], advance: Callable[[], None]
    ) -> None:
        running = list(self.arms)
        turns = [(-1, 0)]  # warms up
        turns += [
            (repeat, b) for repeat in range(self.plan.num_repeats) for b in range(len(batches))
        ]
        for turn, (repeat, batch) in enumerate(turns):
            for arm in arm_order(self.arms, turn):
                if arm in running:
                    try:
                        sample = self._sample(arm, batches[batch], batch, repeat)
                    except CannotRun as error:
                        running.remove(arm)
                        self._drop(arm, concurrency, str(error))
                    else:
                        self.samples += [sample] if repeat >= 0 else []
                advance()

    def _sample(self, arm: Arm, prompts: list[ChatPrompt], batch: int, repeat: int) -> Sample:
        if len(prompts) > arm.max_concurrency:
            raise CannotRun(f"takes {arm.max_concurrency} at once")
        start = time.perf_counter()
        answers = arm.answer(prompts, self.plan.num_tokens)
        seconds = time.perf_counter() - start
        for answer in answers:
            if answer.num_tokens != self.plan.num_tokens:
                raise CannotRun(
                    f"an answer has {answer.num_tokens} tokens instead of {self.plan.num_tokens}"
                )
        num_tokens = self.plan.num_tokens * len(answers)
        first_token_s = tuple(answer.first_token_s for answer in answers)
        return Sample(arm.name, len(prompts), batch, repeat, seconds, num_tokens, first_token_s)

    def _drop(self, arm: Arm, concurrency: int, reason: str) -> None:
        self.reasons[f"{arm.name} at {concurrency}"] = reason
        self.samples = [
            s for s in self.samples if (s.arm, s.concurrency) != (arm.name, concurrency)
        ]
