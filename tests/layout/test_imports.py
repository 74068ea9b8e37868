"""The arrows of canopy/__init__.py: imports go down, never up or around."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python_backend" / "canopy"

BASE = {"config", "cpus", "errors", "sampling"}
ALLOWED = {
    "config": {"cpus", "errors"},
    "cpus": set(),
    "errors": set(),
    "sampling": set(),
    "tree": set(),
    "messages": {"tree"},
    "text": {"errors", "messages", "sampling"},
    "policy": BASE | {"tree"},
    "acceptance": BASE | {"tree"},
    "cache": BASE,
    "models": BASE | {"cache"},
    "serve": BASE,
    "parallel": BASE | {"cache", "models", "serve"},
    "stages": BASE
    | {"messages", "tree", "text", "policy", "acceptance", "cache", "models", "parallel", "serve"},
    "triton_io": {"messages"},
    "engine": BASE | {"messages", "tree", "text", "policy", "stages"},
    "entry": BASE | {"messages", "text", "models", "serve", "stages", "engine"},
    "profiling": BASE
    | {"messages", "tree", "text", "policy", "models", "serve", "stages", "engine", "entry"},
    "cli": BASE | {"parallel", "serve", "stages", "profiling"},
}
# Only inside the server's Python stub can these be imported.
STUB_ONLY = {
    "triton_io.py",
    "stages/bls.py",
    "entry/sink.py",
    "entry/metrics.py",
    "entry/service.py",
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


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    relative = path.relative_to(PACKAGE)
    room = relative.parts[0].removesuffix(".py")
    if room == "__init__":
        return
    used = {m.split(".")[1] for m in imported_modules(path) if m.startswith("canopy.")}
    extra = {"triton_io"} if relative.as_posix() == "stages/bls.py" else set()
    assert used - {room} <= ALLOWED[room] | extra


@pytest.mark.parametrize("room", ["tree", "policy"])
def test_pure_rooms_know_numpy_alone(room):
    for path in (PACKAGE / room).rglob("*.py"):
        outside = {module.split(".")[0] for module in imported_modules(path)}
        assert not outside & {
            "torch",
            "numba",
            "triton_python_backend_utils",
            "socket",
            "urllib",
        }, path


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
