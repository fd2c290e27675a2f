"""docs/doctor.md speaks of every check and of no others, and the reference of every option."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.features.doctor.devices import examine
from harness.features.doctor.machine import HostState, look
from harness.features.doctor.settings import SettingsRecord, Tunable
from harness.features.doctor.syncs import examine_syncs
from harness.lab.facts import HostFacts
from harness.lab.transport.local import LocalRunner
from tests.unit.command_docs import read_command
from tests.unit.sysfs_tree import DISK, FACTS, Tree

DOCS = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")


def every_check(tmp_path: Path) -> set[str]:
    """The names of all findings that there can be, those that are told only in special cases too."""
    tree = Tree(tmp_path / "root")
    tree.write("proc/meminfo", "MemTotal: 33554432 kB\nHugePages_Total:     512\nHugePages_Free:      500")
    tree.write("sys/devices/system/node/node1/cpulist", "16-31")
    tree.write("proc/sys/kernel/numa_balancing", "1")
    tree.write("run/virt-overhead/tuned", SettingsRecord.of_this_process((Tunable("/sys/x", "1"),)).text())
    facts = HostFacts({**FACTS.values, "hypervisor": "kvm"})
    with tree.leased("run7"):
        seen = look(LocalRunner(), facts, [DISK], root=str(tree.root), window=0)
    disk = replace(seen.disks[0], link_power="max_performance")
    cases: list[HostState] = [
        replace(seen, disks=(disk,)),
        replace(seen, disks=(replace(disk, released=False),)),
        replace(seen, disks=()),
        replace(seen, disks=(replace(disk, device=""),)),
        replace(seen, disks=(replace(disk, device="", owned=False),)),
    ]
    checks = {finding.check.replace(f"{DISK.name}: ", "DISK: ") for case in cases for finding in examine(case)}
    (of_syncs,) = examine_syncs(LocalRunner(), "fio", ["DIRECTORY"])
    return checks | {of_syncs.check}


def documented_checks() -> set[str]:
    """The first column of the table of checks. `DISK: queue, write cache` speaks of two checks of a disk."""
    table = DOCS.partition("| check | advice | problem |")[2].partition("\n\n")[0]
    names: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+?) \|", table, re.M):
        cell_without_case = re.sub(r" \(.*\)", "", cell)
        disk, _, rest = cell_without_case.rpartition("DISK: ")
        assert disk == ""
        prefix = "DISK: " if "DISK: " in cell_without_case else ""
        names |= {f"{prefix}{name}" for name in rest.split(", ")}
    return names


def test_the_docs_name_every_check_and_no_other(tmp_path: Path) -> None:
    assert documented_checks() == every_check(tmp_path)


def test_the_docs_name_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help", "--debug"}
    assert set(re.findall(r"^\| `(--[a-z]+)", read_command("doctor"), re.M)) - {"--debug"} == options
