"""The outbox: order, faults, and the end."""

import threading

from canopy.frontend.response_thread import ResponseThread


def test_jobs_run_in_order_on_another_thread():
    outbox, done = ResponseThread(), []
    for number in range(100):
        outbox.post(lambda number=number: done.append((number, threading.current_thread())))
    outbox.close()
    assert [number for number, _ in done] == list(range(100))
    assert threading.main_thread() not in {thread for _, thread in done}


def test_a_job_that_raises_does_not_stop_the_others(caplog):
    outbox, done = ResponseThread(), []
    outbox.post(lambda: 1 / 0)
    outbox.post(lambda: done.append(1))
    outbox.close()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


def test_posting_does_not_wait_and_closing_does():
    outbox, gate, done = ResponseThread(), threading.Event(), []
    outbox.post(gate.wait)
    outbox.post(lambda: done.append(1))
    assert done == []
    threading.Timer(0.05, gate.set).start()
    outbox.close()
    assert done == [1]


def test_closing_gives_up_on_a_job_that_hangs():
    outbox, gate = ResponseThread(), threading.Event()
    outbox.post(gate.wait)
    outbox.close(timeout_s=0.05)
    gate.set()
