"""Compiled functions never outlive their sources, and are kept where nobody else can write."""

import shutil
import tempfile
from pathlib import Path

import pytest

import canopy_kernels
from canopy_kernels.cpu import numba_cache


def test_every_change_of_a_compiled_source_has_a_directory_of_its_own(monkeypatch, tmp_path):
    folder = tmp_path / "canopy_kernels"
    shutil.copytree(Path(canopy_kernels.__file__).parent, folder)
    monkeypatch.setattr(numba_cache, "__file__", str(folder / "cpu" / "numba_cache.py"))
    monkeypatch.setattr(numba_cache.config, "CACHE_DIR", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))

    def directory() -> Path:
        numba_cache.configure_cache()
        return Path(numba_cache.config.CACHE_DIR)

    first = directory()
    assert first.parent == tmp_path / "chosen"
    assert directory() == first
    (folder / "notes.py").write_text("compiled by nobody")
    assert directory() == first
    with (folder / "cpu" / "simd_ir.py").open("a") as file:
        file.write("LANES = 8\n")
    assert directory() != first


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_directory_that_can_be_made_is_taken_and_not_made_yet(tmp_path, temporary):
    assert numba_cache.writable(tmp_path / "a" / "b", "name") == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()
    assert list(temporary.iterdir()) == []


def test_where_nothing_can_be_written_or_no_room_is_left_a_private_one_serves_every_process(
    tmp_path, temporary, monkeypatch
):
    (tmp_path / "file").write_text("")
    first = numba_cache.writable(tmp_path / "file" / "cache", "name")
    assert first.parent == temporary
    assert first.stat().st_mode & 0o077 == 0
    assert numba_cache.writable(tmp_path / "file" / "cache", "name") == first
    monkeypatch.setattr(numba_cache, "_ROOM_BYTES", 1 << 62)
    assert numba_cache.writable(tmp_path / "cache", "name") == first


def test_a_temporary_directory_that_others_can_write_is_passed_over(tmp_path, temporary):
    (tmp_path / "file").write_text("")
    usual = numba_cache.writable(tmp_path / "file", "name")
    usual.chmod(0o777)
    assert numba_cache.writable(tmp_path / "file", "name") != usual
    usual.rmdir()
    usual.symlink_to(tmp_path)
    assert numba_cache.writable(tmp_path / "file", "name") != usual
