"""The tables of docs/ that follow from the code are those that the code would write."""

import pytest

from docs.generate import FOLDER, PAGES, configuration_tables, rendered


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_current(page):
    shown = (FOLDER / page).read_text(encoding="utf-8")
    assert shown == rendered(page), "run `python -m docs.generate`"


def test_every_key_is_explained_or_speaks_for_itself():
    rows = [line for line in configuration_tables().splitlines() if line.startswith("| `")]
    silent = [row.split("`")[1] for row in rows if row.endswith("|  |")]
    assert set(silent) <= SPEAKING


SPEAKING = {
    "num_threads",
    "min_match",
    "max_depth",
    "block_size",
    "prefix_reuse",
    "entropy_max_nodes",
    "max_prompt_bytes",
    "request_timeout_s",
    "http_port",
    "grpc_port",
    "metrics_port",
}
