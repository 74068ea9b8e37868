"""The draft schedule counts steps down, and forgets them when half of the sequences are gone."""

from canopy.engine.draft_schedule import DraftSchedule


def test_only_the_steps_that_were_set_are_skipped():
    schedule = DraftSchedule()
    assert not schedule.skips(4, 4)
    for draft_next in (0, 1):
        schedule.set_next(draft_next, 4)
        assert [schedule.skips(4, 4) for _ in range(3)] == [False] * 3
    schedule.set_next(3, 4)
    assert not schedule.skips(4, 0)  # nobody to be drafted for: the step does not count
    assert [schedule.skips(4, 4) for _ in range(4)] == [True, True, False, False]


def test_with_fewer_than_half_of_the_sequences_drafting_is_tried_again():
    schedule = DraftSchedule()
    schedule.set_next(9, 4)
    assert schedule.skips(2, 2)
    assert not schedule.skips(1, 1)
    assert not schedule.skips(4, 4)


def test_an_engine_without_sequences_forgets_what_was_to_be_skipped():
    schedule = DraftSchedule()
    schedule.set_next(9, 1)
    assert schedule.skips(1, 1)
    assert not schedule.skips(0, 0)
    assert not schedule.skips(1, 1)
