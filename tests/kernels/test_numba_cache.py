"""Compiled functions never outlive the sources that went into them."""

import shutil
from pathlib import Path

import canopy_kernels
from canopy_kernels.cpu import numba_cache


def test_every_change_of_a_compiled_source_has_a_directory_of_its_own(monkeypatch, tmp_path):
    folder = tmp_path / "canopy_kernels"
    shutil.copytree(Path(canopy_kernels.__file__).parent, folder)
    monkeypatch.setattr(numba_cache, "__file__", str(folder / "cpu" / "numba_cache.py"))
    monkeypatch.setattr(numba_cache.config, "CACHE_DIR", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))

    def directory() -> Path:
        numba_cache.keep_by_sources()
        return Path(numba_cache.config.CACHE_DIR)

    first = directory()
    assert first.parent == tmp_path / "chosen"
    assert directory() == first
    (folder / "notes.py").write_text("compiled by nobody")
    assert directory() == first
    with (folder / "cpu" / "simd_ir.py").open("a") as file:
        file.write("LANES = 8\n")
    assert directory() != first
