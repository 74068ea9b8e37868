"""A drafter with another vocabulary is refused before it serves anything."""

import json
import shutil

import pytest

from canopy.config import Deployment, DrafterConfig, TargetConfig
from canopy.drafter.stage import make_drafter
from canopy.errors import InvalidDeployment
from canopy.model_store.vocabulary import require_same_vocabulary


def other_tokenizer(tiny_folder, folder, change):
    """A copy of the model whose tokenizer.json was changed."""
    shutil.copytree(tiny_folder, folder)
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    change(settings)
    path.write_text(json.dumps(settings), encoding="utf-8")
    return folder


def swap_two_tokens(settings):
    vocab = settings["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def rename_the_end(settings):
    settings["added_tokens"][0]["content"] = "<end>"


def add_a_token(settings):
    extra = dict(settings["added_tokens"][0], id=257, content="<extra>")
    settings["added_tokens"].append(extra)


def deployment_of(target, drafter):
    return Deployment(
        target=TargetConfig(model=str(target)),
        drafter=DrafterConfig(source="autoregressive", model=str(drafter)),
    )


def test_equal_vocabularies_are_counted(tiny_folder):
    assert require_same_vocabulary(tiny_folder, tiny_folder) == 257


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (swap_two_tokens, r"token \d+ is 'b' in drafter, 'a' in tiny"),
        (rename_the_end, r"token 256 is '<end>' in drafter, '<\|end\|>' in tiny"),
        (add_a_token, "token 257 is '<extra>' in drafter, absent in tiny"),
    ],
)
def test_the_first_difference_is_named_at_start(tiny_folder, tmp_path, change, difference):
    drafter = other_tokenizer(tiny_folder, tmp_path / "drafter", change)
    with pytest.raises(InvalidDeployment, match=difference):
        make_drafter(deployment_of(tiny_folder, drafter))


def test_a_folder_without_a_tokenizer_is_refused(tiny_folder, tmp_path):
    drafter = shutil.copytree(tiny_folder, tmp_path / "drafter")
    (drafter / "tokenizer.json").unlink()
    with pytest.raises(InvalidDeployment, match=r"no tokenizer\.json"):
        make_drafter(deployment_of(tiny_folder, drafter))


def test_a_drafter_with_too_few_embeddings_is_refused(tiny_folder, tmp_path):
    both = [
        other_tokenizer(tiny_folder, tmp_path / name, add_a_token) for name in ("target", "drafter")
    ]
    with pytest.raises(InvalidDeployment, match="257 embeddings for 258 token ids"):
        make_drafter(deployment_of(*both))


def test_the_target_may_draft_for_itself(tiny_folder):
    stage = make_drafter(deployment_of(tiny_folder, tiny_folder))
    assert stage.num_failed_proposals == 0
