"""The pages can be followed: links lead somewhere, files parse, commands exist with their flags."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from bench.__main__ import _parser as bench_parser
from canopy.cli import app
from canopy.deployment_file import parse_deployment

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")

per_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """Arguments of the lines of code blocks that call a program, and of `program ...` in text."""
    text = page.read_text(encoding="utf-8")
    prose = BLOCK.sub("", text)
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose)
    for line in lines:
        called = line.removeprefix(".venv/bin/")
        if called.startswith(f"{program} ") and "[" not in called:
            yield shlex.split(called.removeprefix(f"{program} "), comments=True)


@per_page
def test_links_lead_to_files(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), link


@per_page
def test_deployments_and_manifests_parse(page):
    for block in blocks(page, "toml"):
        parse_deployment(tomllib.loads(block))
    for block in blocks(page, "yaml"):
        for document in yaml.safe_load_all(block):
            assert document["apiVersion"]
            assert document["kind"]


@per_page
def test_the_command_line_takes_what_the_page_says(page):
    group = typer.main.get_command(app)
    for arguments in commands(page, "canopy"):
        name, *rest = ["PROMPT" if a.isupper() and "-" not in a else a for a in arguments]
        assert name in group.commands, arguments
        command = group.commands[name]
        if "--help" not in rest:
            command.make_context(name, rest, resilient_parsing=True)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {a for a in rest if a.startswith("--")} <= known | {"--help"}, arguments


@per_page
def test_the_benchmarks_take_what_the_page_says(page):
    for arguments in commands(page, "python -m bench"):
        if "--help" not in arguments:
            bench_parser().parse_args(arguments)
