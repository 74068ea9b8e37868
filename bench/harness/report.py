"""A Result as tables for the eye and as JSON for programs."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness.benchmark import Record, Result
from bench.harness.machine import describe_machine


def print_result(result: Result, console: Console) -> None:
    """One table for each list of details, then the figures."""
    for title, records in result.details.items():
        console.print(_table(title, records))
    figures = [{"figure": name, "value": value} for name, value in result.figures.items()]
    console.print(_table("figures", figures))


def write_json(name: str, result: Result, path: Path) -> None:
    """{"name", "figures", "details", "machine"}; the folder must exist."""
    document = {
        "name": name,
        "figures": result.figures,
        "details": result.details,
        "machine": describe_machine(),
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _table(title: str, records: list[Record]) -> Table:
    table = Table(title=title, title_justify="left")
    columns = list(records[0]) if records else []
    for column in columns:
        is_number = isinstance(records[0][column], int | float)
        table.add_column(column, justify="right" if is_number else "left")
    for record in records:
        table.add_row(*(_shown(record[column]) for column in columns))
    return table


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
