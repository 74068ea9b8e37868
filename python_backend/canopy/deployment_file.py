"""The deployment as one TOML file: each table is a dataclass of `config`.

An unknown table or key is refused.
"""

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from canopy.config import Deployment, require
from canopy.errors import InvalidDeployment

DEPLOYMENT_VARIABLE = "CANOPY_DEPLOYMENT"


def parse_deployment(tables: dict[str, Any]) -> Deployment:
    """Build a Deployment from parsed TOML. Raises InvalidDeployment for anything unknown."""
    hints = get_type_hints(Deployment)
    unknown = sorted(set(tables) - set(hints))
    require(not unknown, f"unknown table [{', '.join(unknown)}]: known are {', '.join(hints)}")
    return Deployment(**{name: _parse_table(name, hints[name], t) for name, t in tables.items()})


def _parse_table(name: str, kind: type, table: Any) -> Any:
    require(isinstance(table, dict), f"[{name}] must be a table")
    hints = get_type_hints(kind)
    unknown = sorted(set(table) - set(hints))
    require(not unknown, f"unknown key {name}.{', '.join(unknown)}: known are {', '.join(hints)}")
    values = {}
    for key, value in table.items():
        expected = hints[key]
        value = float(value) if expected is float and type(value) is int else value
        message = f"{name}.{key} must be {expected.__name__}, got {value!r}"
        require(type(value) is expected, message)
        values[key] = value
    return kind(**values)


def load_deployment(path: str | Path) -> Deployment:
    """Read a deployment file; an empty file is the embedded default."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidDeployment(f"there is no deployment file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidDeployment(f"{path} is not valid TOML: {error}") from error
    return parse_deployment(tables)


def deployment_of_this_server() -> Deployment:
    """The deployment that `canopy serve` handed to the server's model processes."""
    path = os.environ.get(DEPLOYMENT_VARIABLE)
    require(bool(path), f"{DEPLOYMENT_VARIABLE} must name the deployment file")
    return load_deployment(str(path))


def deployment_as_tables(deployment: Deployment) -> dict[str, Any]:
    """The inverse of `parse_deployment`."""
    return dataclasses.asdict(deployment)
