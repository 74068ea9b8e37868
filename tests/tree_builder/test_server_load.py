"""The metrics page: what is read, and what is not believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.tree_builder.server_load import BadPage, ServerLoad, parse_load

PAGE = """# HELP canopy_running_sequences Sequences served every step
# TYPE canopy_running_sequences gauge
canopy_running_sequences 5
canopy_waiting_sequences 2
canopy_kv_blocks_free 90
canopy_kv_blocks_used 38
nv_inference_exec_count{model="verifier",version="1"} 100
nv_inference_queue_duration_us{model="verifier",version="1"} 3000
nv_inference_queue_duration_us{model="draft",version="1"} 777777
nv_inference_compute_infer_duration_us{model="verifier",version="1"} 1.5e+06
"""


def test_the_queue_and_the_verifiers_counters_are_read():
    assert parse_load(PAGE) == ServerLoad(2, queue_us=3000.0, compute_us=1.5e6)


def test_without_plain_stages_the_rest_is_read():
    load = parse_load("\n".join(line for line in PAGE.splitlines() if line.startswith("canopy")))
    assert load == ServerLoad(2)


@pytest.mark.parametrize("name", ["running_sequences", "waiting_sequences", "kv_blocks_free"])
@pytest.mark.parametrize("value", ["-1", "NaN", "+Inf", "1e18", "many", ""])
def test_a_gauge_that_cannot_be_true_discredits_the_page(name, value):
    lines = [line for line in PAGE.splitlines() if not line.startswith(f"canopy_{name}")]
    with pytest.raises(BadPage, match=name):
        parse_load("\n".join([*lines, f"canopy_{name} {value}"]))


@pytest.mark.parametrize("value", ["-3", "NaN", "1e30"])
def test_an_absurd_optional_family_counts_as_absent(value):
    load = parse_load(PAGE.replace("1.5e+06", value))
    assert (load.queue_us, load.compute_us) == (3000.0, 0.0)


@given(st.text())
def test_any_text_gives_a_load_or_a_bad_page(text):
    with pytest.raises(BadPage):
        parse_load(text)


def test_the_verifiers_queue_is_what_happened_between_two_pages():
    earlier, later = ServerLoad(queue_us=100.0, compute_us=1e6), ServerLoad(queue_us=5e5)
    assert ServerLoad(queue_us=5e5 + 100.0, compute_us=2e6).after(earlier).verifier_queue == 0.5
    assert later.after(earlier).verifier_queue == 0.0  # the server was restarted
