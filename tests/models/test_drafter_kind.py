"""A drafter's folder says what it is, and the source must agree."""

import shutil

import pytest
from golden_heads import GOLDEN, copied, target_of

from canopy.config import DrafterConfig
from canopy.errors import InvalidDeployment
from canopy.models.drafter_kind import drafter_kind

QWEN = target_of("dspark-deepspec")


def kind(source, folder, target=QWEN):
    return drafter_kind(DrafterConfig(source=source, model=str(folder)), target)


def test_auto_finds_out_what_a_folder_holds(tmp_path, tiny_folder):
    for name in ("eagle3-specforge", "dspark-speculators", "dflash-zlab"):
        assert kind("auto", GOLDEN / name) == name.split("-")[0]
    assert kind("auto", tiny_folder) == "autoregressive"
    assert kind("auto", "default") == kind("markov", "anywhere") == "block"
    assert kind("all", GOLDEN / "dspark-deepspec") == "dspark"


REFUSED = [
    ("eagle3", "dspark-deepspec", 'set drafter.source = "dspark" or "auto"'),
    ("dflash", "eagle3-deepspec", 'set drafter.source = "eagle3" or "auto"'),
    ("all", "eagle3-deepspec", 'set drafter.source = "eagle3"'),
]


@pytest.mark.parametrize(("source", "name", "words"), REFUSED)
def test_a_source_of_another_kind_is_refused_with_the_right_one(source, name, words):
    with pytest.raises(InvalidDeployment, match=words):
        kind(source, GOLDEN / name)


def test_other_heads_and_empty_folders_are_refused_by_name(tmp_path):
    mtp = copied("eagle3-deepspec", tmp_path, {"architectures": ["DeepSeekMTPModel"]})
    with pytest.raises(InvalidDeployment, match="DeepSeekMTPModel"):
        kind("auto", mtp)
    shutil.rmtree(mtp)
    with pytest.raises(InvalidDeployment, match="no config"):
        kind("auto", mtp)


def test_a_head_of_another_target_is_refused(tiny_folder):
    with pytest.raises(InvalidDeployment, match="made for another target"):
        kind("auto", GOLDEN / "dflash-zlab", tiny_folder)
