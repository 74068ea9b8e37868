"""The borders of the library: imports go down, never up or around."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python_backend" / "canopy"

BASE = {
    "addresses",
    "config",
    "deployment_file",
    "cpus",
    "dtypes",
    "errors",
    "metrics_page",
    "progress",
    "sampling",
}
SHARED = BASE | {"tree", "text", "costs", "acceptance", "kv_cache", "models", "model_store"}
SAMPLED = SHARED | {"protocol", "grammar", "logits_processors"}
ALLOWED = {
    "config": {"cpus", "dtypes", "errors", "sampling"},
    "deployment_file": {"config", "errors"},
    "addresses": {"config", "errors"},
    "cpus": set(),
    "dtypes": set(),
    "errors": set(),
    "metrics_page": set(),
    "progress": set(),
    "sampling": set(),
    "tree": BASE,
    "protocol": BASE | {"tree"},
    "text": BASE | {"protocol"},
    "model_store": BASE,
    "costs": BASE | {"tree", "model_store"},
    "acceptance": BASE | {"tree", "text"},
    "logits_processors": BASE | {"grammar"},
    "kv_cache": BASE,
    "grammar": BASE | {"models", "text"},
    "models": BASE | {"kv_cache", "model_store"},
    "drafter": SAMPLED,
    "tree_builder": SHARED | {"protocol"},
    "verifier": SAMPLED,
    "engine": BASE | {"protocol", "tree", "text", "costs"},
    "frontend": SHARED | {"protocol", "engine", "grammar", "tree_builder"},
    "profiling": SHARED | {"protocol", "engine", "drafter", "tree_builder", "verifier", "frontend"},
    "server": BASE | {"costs", "model_store", "profiling"},
    "cli": BASE | {"costs", "model_store", "profiling", "server", "verifier"},
}
# Only inside the server's Python stub can these be imported.
STUB_ONLY = {
    "protocol/triton_io.py",
    "protocol/bls.py",
    "frontend/inputs.py",
    "frontend/reply.py",
    "frontend/response_stream.py",
    "frontend/triton_metrics.py",
    "frontend/service.py",
}


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            modules.add(node.module or "")
    return modules


def names_below(path: Path, package: str) -> set[str]:
    """The packages and modules directly below `package` that a file imports."""
    depth = package.count(".") + 1
    return {m.split(".")[depth] for m in imported_modules(path) if m.startswith(f"{package}.")}


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room != "__init__":
        assert names_below(path, "canopy") - {room} <= ALLOWED[room]


def test_the_stages_import_none_of_each_other():
    stages = {"drafter", "tree_builder", "verifier"}
    for stage in stages:
        for path in (PACKAGE / stage).rglob("*.py"):
            assert not names_below(path, "canopy") & (stages - {stage}), path


@pytest.mark.parametrize("room", ["tree", "tree_builder", "costs"])
def test_rooms_of_policies_do_not_compute_on_tensors(room):
    for path in (PACKAGE / room).rglob("*.py"):
        outside = {module.split(".")[0] for module in imported_modules(path)}
        if path.name == "profile_file.py":  # asks torch for the name of the GPU
            outside -= {"torch"}
        assert not outside & {"torch", "numba", "triton_python_backend_utils"}, path


def test_the_stub_module_is_imported_by_its_few_owners_only():
    owners = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if "triton_python_backend_utils" in imported_modules(path)
    }
    assert owners <= STUB_ONLY


def test_the_client_depends_on_the_wire_format_only():
    for path in (ROOT / "client").rglob("*.py"):
        assert not {m for m in imported_modules(path) if m.split(".")[0] in ("canopy", "torch")}, (
            path
        )


KERNELS = ROOT / "kernels" / "canopy_kernels"


def test_families_of_kernels_import_only_families_below_them():
    allowed = {
        "cpu": set(),
        "host_to_device": set(),
        "ngram": {"cpu"},
        "sampling": {"cpu"},
        "dense": set(),
        "attention": {"cpu"},
        "block_head": {"cpu"},
        "int8": {"cpu", "attention", "block_head"},
        "int4": {"cpu", "int8"},
        "aot": {"attention", "sampling", "dense"},
    }
    for path in KERNELS.rglob("*.py"):
        room = path.relative_to(KERNELS).parts[0].removesuffix(".py")
        if room != "__init__":
            assert names_below(path, "canopy_kernels") - {room} <= allowed[room], path


ALL = [
    path
    for top in ("python_backend", "kernels", "client", "training", "bench", "model_repository")
    for path in (ROOT / top).rglob("*.py")
]


def test_no_file_is_longer_than_300_lines():
    with_tests = [*ALL, *(ROOT / "tests").rglob("*.py")]
    assert not [p for p in with_tests if p.read_text(encoding="utf-8").count("\n") > 300]


def test_no_folder_holds_more_than_22_modules():
    folders = {path.parent for path in ALL}
    assert not [f for f in folders if len(list(f.glob("*.py"))) > 23]  # with its __init__.py


def test_no_two_test_modules_share_a_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})
