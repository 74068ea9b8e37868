"""Files that are not what they were are refused or made again, never served from."""

import pytest

from canopy.config import Deployment, DrafterConfig, TargetConfig
from canopy.errors import InvalidDeployment
from canopy.model_store import assets, integrity
from canopy.model_store.integrity import check_files
from canopy.model_store.manifest import (
    has_wrong_checksum,
    integrity_error,
    manifest_path,
    with_checksum,
    write_manifest,
)


@pytest.mark.parametrize("name", ["NGRAM_STORE", "SHIPPED_TEXTS", "BLOCK_DRAFTER", "SMALL_DRAFTER"])
def test_what_is_shipped_is_what_its_manifest_says(name):
    assert integrity_error(getattr(assets, name), None, full=True) is None


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def deployment(tiny_folder, tmp_path, monkeypatch):
    """Of a target without a manifest, and a drafter and a store with one."""
    drafter, store = tmp_path / "drafter", tmp_path / "store.safetensors"
    drafter.mkdir()
    (drafter / "drafter.safetensors").write_bytes(b"weights")
    store.write_bytes(b"grams")
    write_manifest(drafter, "training")
    write_manifest(store, "training")
    return Deployment(
        target=TargetConfig(model=str(tiny_folder)),
        drafter=DrafterConfig("all", str(drafter), ngrams=str(store)),
    )


@pytest.mark.parametrize("name", ["store.safetensors", "drafter/drafter.safetensors"])
def test_a_store_or_drafter_that_is_not_whole_stops_a_start(deployment, tmp_path, name):
    assert check_files(deployment, full=True) == []
    flip(tmp_path / name)
    assert check_files(deployment, full=False) == []
    with pytest.raises(InvalidDeployment, match="another sha256"):
        check_files(deployment, full=True)
    cut(tmp_path / name)
    with pytest.raises(InvalidDeployment, match="is damaged"):
        check_files(deployment, full=False)


def test_files_without_a_manifest_are_taken_as_they_are(deployment, tmp_path):
    manifest_path(tmp_path / "store.safetensors").unlink()
    (tmp_path / "drafter" / "manifest.json").write_text('{"of": "another kind"}')
    cut(tmp_path / "store.safetensors")
    cut(tmp_path / "drafter" / "drafter.safetensors")
    assert check_files(deployment, full=True) == []


def test_only_whole_copies_are_looked_at_and_others_work_undisturbed(tmp_path):
    model = tmp_path / "m"
    for name in ("m", "m.int8-2", "m.int4-2.abcd", "m.int8-x", "mm.int8-2"):
        (tmp_path / name).mkdir()
    (line,) = integrity.drop_damaged_copies(model)
    assert line.startswith(str(tmp_path / "m.int8-2"))
    assert not (tmp_path / "m.int8-2").exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_document_tells_that_it_was_changed():
    document = with_checksum({"a": [0.1, 2], "b": {"c": None}})
    assert not has_wrong_checksum(document)
    assert has_wrong_checksum({**document, "a": [0.1, 3]})
    assert not has_wrong_checksum({"a": 1})
    assert not has_wrong_checksum([])
