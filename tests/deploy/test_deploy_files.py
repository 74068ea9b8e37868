"""Every deployment file of the project can be used."""

from pathlib import Path

import pytest

from canopy.config import Deployment
from canopy.deployment_file import deployment_as_tables, load_deployment
from canopy.dtypes import AUTO

FOLDER = Path(__file__).parents[2] / "deploy"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_file_parses(path):
    load_deployment(path)


def test_the_default_file_shows_every_key_with_its_default():
    import tomllib

    shown = tomllib.loads((FOLDER / "default.toml").read_text(encoding="utf-8"))
    expected = deployment_as_tables(Deployment())
    expected["target"]["dtype"] = AUTO  # which a deployment has replaced by what it stands for
    assert shown == expected
