"""The load monitor against an endpoint that is down, slow, malformed or lying."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from waiting import wait_until

from canopy.config import ServerConfig
from canopy.tree_builder import load_monitor
from canopy.tree_builder.load_monitor import NOT_KNOWN, LoadMonitor
from canopy.tree_builder.server_load import LoadState

INTERVAL_S = 0.02


def page(waiting):
    names = ("running_sequences", "waiting_sequences", "kv_blocks_free", "kv_blocks_used")
    return "".join(f"canopy_{n} {v}\n" for n, v in zip(names, (1, waiting, 7, 3), strict=True))


class Endpoint:
    """Answers /metrics with `body` after `delay_s`."""

    def __init__(self):
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                time.sleep(endpoint.delay_s)
                body = endpoint.body if self.path == "/metrics" else b""
                self.send_response(endpoint.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                endpoint.num_served += 1

            def log_message(self, *_):
                return

        self.body, self.status, self.delay_s, self.num_served = page(1).encode(), 200, 0.0, 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def config(self):
        return ServerConfig(metrics_port=self.server.server_address[1])

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(load_monitor, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(load_monitor, "STALE_AFTER_S", 0.4)
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture
def monitor(endpoint):
    monitor = LoadMonitor(endpoint.config, INTERVAL_S)
    yield monitor
    monitor.close()


def becomes(monitor, is_true, timeout_s=5.0):
    return wait_until(lambda: is_true(monitor.read()), timeout_s)


def is_fresh(waiting):
    return lambda known: known.state is LoadState.FRESH and known.load.num_waiting == waiting


def test_the_load_follows_the_page(endpoint, monitor):
    assert becomes(monitor, is_fresh(1))
    endpoint.body = page(9).encode()
    assert becomes(monitor, is_fresh(9))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("status", 500),
        ("delay_s", 0.6),
        ("body", b""),
        ("body", b"\xff\xfe\x00"),
        ("body", b"<html>canopy_running_sequences 4</html>"),
        ("body", page(-4).encode()),
        ("body", page("NaN").encode()),
        ("body", page(10**12).encode()),
    ],
    ids=["error", "slow", "empty", "no text", "no metrics", "negative", "no number", "absurd"],
)
def test_a_failing_endpoint_leaves_the_last_value_marked_stale(endpoint, monitor, attribute, value):
    assert becomes(monitor, is_fresh(1))
    setattr(endpoint, attribute, value)
    assert becomes(monitor, lambda known: known.state is LoadState.STALE)
    assert monitor.read().load.num_waiting == 1


def test_an_endpoint_that_comes_back_is_believed_again(endpoint, monitor):
    assert becomes(monitor, is_fresh(1))
    endpoint.body = b"broken"
    assert becomes(monitor, lambda known: known.state is LoadState.STALE)
    endpoint.body = page(3).encode()
    assert becomes(monitor, is_fresh(3))


def test_what_is_too_old_is_forgotten(endpoint, monitor, monkeypatch):
    assert becomes(monitor, is_fresh(1))
    endpoint.close()
    monkeypatch.setattr(load_monitor, "FORGOTTEN_AFTER_S", 0.5)
    assert becomes(monitor, lambda known: known is NOT_KNOWN)


def test_nobody_there_is_the_default_at_once(endpoint):
    config = endpoint.config
    endpoint.close()
    monitor = LoadMonitor(config, INTERVAL_S)
    time.sleep(5 * INTERVAL_S)
    assert monitor.read() is NOT_KNOWN
    monitor.close()


def test_a_closed_monitor_asks_no_more(endpoint):
    monitor = LoadMonitor(endpoint.config, INTERVAL_S)
    assert becomes(monitor, is_fresh(1))
    monitor.close()
    served = endpoint.num_served
    time.sleep(5 * INTERVAL_S)
    assert endpoint.num_served == served
