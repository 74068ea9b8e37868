import pytest

from canopy.config import LONGEST_MATCH, Deployment, TargetConfig
from canopy.cpus import has_matrix_tiles
from canopy.deployment_file import deployment_as_tables, load_deployment, parse_deployment
from canopy.dtypes import DTYPES, draft_head_dtype, drafter_dtype
from canopy.errors import InvalidDeployment
from canopy_kernels.ngram import candidates


def test_an_empty_file_is_the_embedded_default(tmp_path):
    path = tmp_path / "empty.toml"
    path.write_text("")
    assert load_deployment(path) == Deployment()


def test_tables_and_deployment_are_inverse():
    tables = {"tree": {"policy": "chain", "node_budget": 3}, "server": {"http_port": 9000}}
    deployment = parse_deployment(tables)
    assert parse_deployment(deployment_as_tables(deployment)) == deployment
    assert (deployment.tree.policy, deployment.server.http_port) == ("chain", 9000)


def test_whole_numbers_pass_for_floats():
    assert parse_deployment({"limits": {"request_timeout_s": 5}}).limits.request_timeout_s == 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trees]\n", r"unknown table \[trees\]: known are target"),
        ('[target]\ndtype = "bfloat16"\ndevice = "cuda"\n', "block_size = 16: choose 64"),
        ("[tree]\nbudget = 3\n", r"unknown key tree.budget: known are policy"),
        ("[tree]\nnode_budget = '3'\n", "tree.node_budget must be int"),
        ("[tree]\nnode_budget = true\n", "tree.node_budget must be int"),
        ("[tree]\npolicy = 'guess'\n", "tree.policy = 'guess': choose one of"),
        ("tree = 3\n", r"\[tree\] must be a table"),
        ("[cache]\nnum_tokens = 4\n", "must hold one block"),
        ("[server]\nhttp_port = 8001\n", "ports must differ"),
        ("[drafter]\nsource = 'autoregressive'\n", "drafter.model is the folder"),
        ("[target]\ntensor_parallel_size = 2\n", '" runs on one rank: choose "bfloat16"'),
        ("[server]\nhost = '[::1]'\n", "without brackets"),
        ("[server]\nhost = ''\n", "server.host"),
        ("[target]\nrendezvous = 'a:1'\n", "for tensor_parallel_size = 2 or more"),
        ("[target]\nmax_graph_rows = 2000\n", r"max_graph_rows must be in 0..1024"),
        ("[target]\nbatch_invariant = true\n", 'on the CPU "int8" and "int4" are so'),
        ("[target\n", "is not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InvalidDeployment, match=message):
        load_deployment(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidDeployment, match="there is no deployment file"):
        load_deployment(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ({}, "int4"),
        ({"model": "some/folder"}, "int8"),
        ({"device": "cuda"}, "bfloat16"),
        ({"dtype": "int8"}, "int8"),
        ({"model": "some/folder", "dtype": "int4"}, "int4"),
    ],
)
def test_four_bits_are_the_default_only_where_the_model_has_no_more(monkeypatch, target, dtype):
    monkeypatch.setattr("canopy.config.has_matrix_tiles", lambda: False)
    assert TargetConfig(**target).dtype == dtype


def test_eight_bits_are_the_default_where_the_cpu_has_matrix_tiles(monkeypatch, tmp_path):
    monkeypatch.setattr("canopy.config.has_matrix_tiles", lambda: True)
    assert TargetConfig().dtype == "int8"
    cpu_info = tmp_path / "cpuinfo"
    assert not has_matrix_tiles(cpu_info)
    cpu_info.write_text("processor : 0\nflags : fpu avx512bw amx_tile amx_int8\n")
    assert has_matrix_tiles(cpu_info)
    cpu_info.write_text("processor : 0\nflags : fpu avx512bw\n")
    assert not has_matrix_tiles(cpu_info)


def test_drafter_weights_follow_the_target_but_for_four_bits():
    assert [drafter_dtype("", dtype) for dtype in DTYPES] == ["float32", "bfloat16", "int8", "int8"]
    assert [draft_head_dtype("", dtype) for dtype in DTYPES] == [
        "float32",
        "bfloat16",
        "float32",
        "float32",
    ]
    assert drafter_dtype("int4", "int8") == "int4"
    assert draft_head_dtype("bfloat16", "int4") == "bfloat16"


def test_the_longest_match_is_that_of_the_kernels():
    assert LONGEST_MATCH == candidates.LONGEST_MATCH
