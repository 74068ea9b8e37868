"""CPU quotas of both versions of cgroups, written as the kernel writes them."""

import os
from pathlib import Path

import pytest

from canopy import cpus
from canopy.config import DrafterConfig
from canopy.cpus import cpu_quotas, usable_cpus


class Groups:
    """A cgroup file system in a folder."""

    def __init__(self, folder: Path) -> None:
        self.membership = folder / "cgroup"
        self.mounts = folder / "mounts"
        self.mounts.mkdir()

    def v2(self, limits: dict[str, str], inside: str = "/") -> None:
        self.membership.write_text(f"0::{inside}\n")
        for group, limit in limits.items():
            folder = self.mounts / group.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpu.max").write_text(f"{limit}\n")

    def v1(self, limits: dict[str, int], inside: str, controllers: str) -> None:
        lines = f"5:memory:/elsewhere\n3:{controllers}:{inside}\n1:name=systemd:/\n0::/\n"
        self.membership.write_text(lines)
        for group, quota in limits.items():
            folder = self.mounts / controllers / group.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")

    def quotas(self) -> list[float]:
        return list(cpu_quotas(self.membership, self.mounts))


@pytest.fixture
def groups(tmp_path):
    return Groups(tmp_path)


def test_a_container_of_v2_reads_the_limit_at_its_root(groups):
    groups.v2({"/": "250000 100000"})
    assert groups.quotas() == [2.5]


def test_limits_of_outer_groups_of_v2_count_too(groups):
    limits = {"/a/b": "max 100000", "/a": "150000 50000", "/": "max 100000"}
    groups.v2(limits, inside="/a/b")
    assert groups.quotas() == [3.0]


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_v1_is_read_whatever_shares_its_mount(groups, controllers):
    groups.v1({"/a": 400_000, "/": -1}, "/a", controllers)
    assert groups.quotas() == [4.0]


def test_a_container_of_v1_that_is_told_its_path_outside_finds_its_limit_at_the_mount(groups):
    groups.v1({"/": 50_000}, "/docker/0123", "cpu,cpuacct")
    assert groups.quotas() == [0.5]


def test_what_cannot_be_read_is_no_limit(groups):
    assert groups.quotas() == []
    groups.v2({"/": "nonsense"})
    assert groups.quotas() == []


@pytest.mark.parametrize(("quota", "expected"), [("50000", 1), ("290000", 2), ("max", 3)])
def test_threads_are_the_quota_rounded_down_and_at_least_one(groups, monkeypatch, quota, expected):
    groups.v2({"/": f"{quota} 100000"})
    monkeypatch.setattr(cpus, "_MEMBERSHIP", groups.membership)
    monkeypatch.setattr(cpus, "_MOUNTS", groups.mounts)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert usable_cpus() == DrafterConfig().threads == expected
    assert DrafterConfig(num_threads=7).threads == 7
