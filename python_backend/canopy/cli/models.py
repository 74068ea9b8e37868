"""`canopy models`: what is on this machine, and what a server serves."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canopy.cli.generate import connection

if TYPE_CHECKING:
    from canopy_client import ModelState


def models(
    url: Annotated[str | None, typer.Option(help="Ask this server what it serves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the models that can be fetched and whether they are here; with --url, a server's.

    Examples: canopy models · canopy models --url 127.0.0.1:8001
    """
    from canopy.model_store.folders import local_models

    if url is None:
        local = local_models()
        rows: list[dict[str, Any]] = [
            {"name": m.name, "folder": str(m.folder), "fault": m.fault} for m in local
        ]
        lines = [f"{m.name}  {'ready' if m.fault is None else m.fault}  {m.folder}" for m in local]
    else:
        served = _served(url)
        rows = [asdict(state) for state in served]
        lines = [f"{s.name}  version {s.version}  {s.state}  {s.reason}".rstrip() for s in served]
    print(json.dumps({"models": rows}, indent=2) if as_json else "\n".join(lines))


def _served(url: str) -> list["ModelState"]:
    with connection(url) as client:
        return client.models()
