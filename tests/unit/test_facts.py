"""What a host tells of itself, read from this machine."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.facts import HostFacts, read_facts, require_fio
from harness.lab.transport.local import LocalRunner

RUNNER = LocalRunner("host here")


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return read_facts(RUNNER)


def test_versions_and_sizes_are_those_of_the_machine(facts: HostFacts) -> None:
    assert facts["kernel"] == platform.release()
    assert facts["hostname"] == platform.node()
    assert int(facts["cpus"]) == os.cpu_count()
    assert int(facts["memory_bytes"]) == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05
    )
    assert facts["user"] == str(os.getuid())


@pytest.mark.parametrize("tool", ["sfdisk", "losetup", "lvm", "mkfs.ext4", "mkfs.xfs", "mdadm", "qemu-img"])
def test_a_tool_counts_as_there_exactly_if_it_is(facts: HostFacts, tool: str) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    assert facts.has_tool(tool) == (shutil.which(tool, path=path) is not None)


def test_device_mapper_counts_as_there_exactly_if_the_kernel_lists_it(facts: HostFacts) -> None:
    assert facts.has_device_mapper == ("device-mapper" in Path("/proc/devices").read_text())


def test_a_file_system_that_the_kernel_lists_counts_as_there_and_an_unknown_one_does_not(facts: HostFacts) -> None:
    listed = Path("/proc/filesystems").read_text().split()
    assert all(facts.has_module(name) for name in ("ext4", "xfs") if name in listed)
    assert not facts.has_module("no-such-module")


def test_a_report_quotes_what_is_known_and_no_plumbing(facts: HostFacts) -> None:
    assert {"kernel", "cpu", "cpus", "memory_bytes"} <= set(facts.provenance)
    assert all(facts.provenance.values())
    assert not [
        name for name in facts.provenance if name.startswith(("tool_", "module_")) or name in ("user", "device_mapper")
    ]


def test_what_a_host_does_not_tell_is_empty(facts: HostFacts) -> None:
    assert facts["colour"] == ""
    assert not facts.has_tool("no-such-tool")


def test_a_machine_without_linux_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").write_text("#!/bin/echo This account is currently not available:\n")
    (tmp_path / "sh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="host here: it did not report its kernel version"):
        read_facts(RUNNER)


def test_a_host_without_fio_is_refused_with_the_reason_and_the_command() -> None:
    with pytest.raises(HostError, match="host node1: fio is not installed, so there is no baseline") as error:
        require_fio(HostFacts({"fio": ""}), "node1")
    assert error.value.hint == "install it on node1: apt-get install fio"
    require_fio(HostFacts({"fio": "fio-3.39"}), "node1")


def test_a_path_that_is_not_fio_is_named_with_its_key() -> None:
    facts = read_facts(RUNNER, "/bin/true")
    with pytest.raises(HostError, match="/bin/true is not fio") as error:
        require_fio(facts, "node1", "/bin/true")
    assert error.value.hint == "correct host.node1.fio in the lab file"
