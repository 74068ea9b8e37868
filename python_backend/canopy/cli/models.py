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
    """List the models that can be fetched and whether they are here; with --url, a server's,
    and what a request gets there that asks for nothing.

    Examples: canopy models · canopy models --url 127.0.0.1:8001
    """
    from canopy.model_store.folders import local_models

    if url is None:
        local = local_models()
        found: dict[str, Any] = {
            "models": [{"name": m.name, "folder": str(m.folder), "fault": m.fault} for m in local]
        }
        lines = [f"{m.name}  {'ready' if m.fault is None else m.fault}  {m.folder}" for m in local]
    else:
        served, described = _served(url)
        found = {"models": [asdict(state) for state in served], "serving": described}
        lines = [f"{s.name}  version {s.version}  {s.state}  {s.reason}".rstrip() for s in served]
        lines += _told(described)
    print(json.dumps(found, indent=2) if as_json else "\n".join(lines))


def _served(url: str) -> tuple[list["ModelState"], dict[str, Any]]:
    with connection(url) as client:
        return client.models(), client.describe()


def _told(described: dict[str, Any]) -> list[str]:
    """The target's context, and what a request gets that asks for nothing, for people."""
    if not described:
        return []
    defaults = ", ".join(f"{name} {value}" for name, value in described["defaults"].items())
    context = described["max_context_length"]
    return [f"serving {described['model']}, context of {context} tokens", f"defaults: {defaults}"]
