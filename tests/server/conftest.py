"""Real servers for the tests, and what must be true of each after every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tested_server import MAX_CONTEXT, TestedServer

from canopy.config import (
    CacheConfig,
    Deployment,
    DrafterConfig,
    LimitsConfig,
    TargetConfig,
)
from canopy.server.runtime import with_free_ports


def _serve(deployment: Deployment, folder: Path) -> Iterator[TestedServer]:
    with TestedServer(with_free_ports(deployment), folder) as server:
        yield server


@pytest.fixture(scope="session")
def shared_server(tiny_folder: Path, tmp_path_factory) -> Iterator[TestedServer]:
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="int8"),  # whose text is exact
        cache=CacheConfig(num_tokens=16384),
        limits=LimitsConfig(max_step_tokens=96),
    )
    yield from _serve(deployment, tmp_path_factory.mktemp("server"))


@pytest.fixture
def server(shared_server: TestedServer) -> Iterator[TestedServer]:
    """A tiny random model behind the whole pipeline; its cache is free after every test."""
    yield shared_server
    assert shared_server.cache_is_free()


@pytest.fixture(scope="module")
def small_server(tiny_folder: Path, tmp_path_factory) -> Iterator[TestedServer]:
    """A cache of one longest sequence, and a short queue."""
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="float32"),
        cache=CacheConfig(num_tokens=MAX_CONTEXT),
        limits=LimitsConfig(max_running=12, max_waiting=24, max_step_tokens=64),
    )
    yield from _serve(deployment, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def self_drafting_server(tiny_folder: Path, tmp_path_factory) -> Iterator[TestedServer]:
    """The target is its own autoregressive drafter, its proposal rows whole."""
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="float32"),
        drafter=DrafterConfig(
            source="autoregressive", model=str(tiny_folder), coupling=1.0, row_size=257
        ),
        cache=CacheConfig(num_tokens=8192),
    )
    yield from _serve(deployment, tmp_path_factory.mktemp("self"))
