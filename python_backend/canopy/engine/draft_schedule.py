"""In which steps nothing is drafted, as the tree builder's last answer has it."""


class DraftSchedule:
    """Counts the steps until sequences are drafted for again."""

    def __init__(self) -> None:
        self._skip_steps = 0
        self._num_running = 0  # when the steps to be skipped were set

    def skips(self, num_running: int, num_drafting: int) -> bool:
        """Whether the sequences that could be drafted for decode plainly in this step.

        To be asked in every step. Once half of the running sequences are gone, drafting may pay
        for the others, and the steps left to be skipped are forgotten.
        """
        if 2 * num_running < self._num_running:
            self._skip_steps = 0
        if self._skip_steps <= 0 or num_drafting == 0:
            return False
        self._skip_steps -= 1
        return True

    def set_next(self, draft_next: int, num_running: int) -> None:
        """Draft in the `draft_next`-th step from now; 0 and 1 are the next one."""
        self._skip_steps = draft_next - 1
        self._num_running = num_running if self._skip_steps > 0 else 0
