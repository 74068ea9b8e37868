from canopy.metrics_page import MetricsPage

PAGE = """# HELP canopy_steps_total Passes of the engine loop
# TYPE canopy_steps_total counter
canopy_steps_total 12
canopy_stage_seconds_total{stage="draft"} 0.25
canopy_stage_seconds_total{stage="verify"} 1.5e+00
nv_inference_exec_count{model="verifier",version="1"} 7
"""


def test_samples_are_added_up_by_name_and_labels():
    page = MetricsPage.parse(PAGE)
    assert page.total("canopy_steps_total") == 12
    assert page.total("canopy_stage_seconds_total", stage="verify") == 1.5
    assert page.total("canopy_stage_seconds_total") == 1.75
    assert page.total("nv_inference_exec_count", model="verifier") == 7
    assert page.total("nv_inference_exec_count", model="draft") == 0
