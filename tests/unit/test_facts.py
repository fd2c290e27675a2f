"""What a host tells of itself, read from this machine."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError
from harness.lab.facts import HostFacts, read_facts, read_paths, read_schedulers, require_fio
from harness.lab.transport.base import Completed
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


def test_the_scheduler_of_each_disk_is_the_one_that_the_kernel_has_chosen() -> None:
    listed = {path.parts[3]: path.read_text() for path in Path("/sys/block").glob("*/queue/scheduler")}
    found = read_schedulers(RUNNER, [*listed, "no-such-disk"])
    assert found.keys() == listed.keys()
    for disk, text in listed.items():
        assert f"[{found[disk]}]" in text or text.strip() == found[disk]


def test_a_scheduler_is_the_word_in_brackets_and_a_disk_that_is_gone_has_none() -> None:
    class Printing(LocalRunner):
        """grep on a host with two disks, one of which has a choice of schedulers."""

        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            assert argv[-3:] == [f"/sys/block/{disk}/queue/scheduler" for disk in ("nvme0n1", "sda", "sdb")]
            lines = ("nvme0n1/queue/scheduler:[none] mq-deadline", "sda/queue/scheduler:none [mq-deadline] bfq")
            return Completed(tuple(argv), 2, "".join(f"/sys/block/{line}\n" for line in lines), "")

    assert read_schedulers(Printing("lab"), ["nvme0n1", "sda", "sdb"]) == {"nvme0n1": "none", "sda": "mq-deadline"}


def test_the_path_of_a_disk_is_the_pci_device_that_it_hangs_from() -> None:
    class Printing(LocalRunner):
        """A host with two disks of one controller behind a bridge, an NVMe disk, and a disk in memory."""

        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            assert argv[-4:] == ["sda", "sdb", "nvme0n1", "nullb0"]
            lines = (
                "sda /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/host2/target2:0:0/2:0:0:0",
                "sdb /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/host2/target2:0:1/2:0:1:0",
                "nvme0n1 /sys/devices/pci0000:00/0000:00:05.0/nvme/nvme0",
                "nullb0 ",
            )
            return Completed(tuple(argv), 0, "".join(f"{line}\n" for line in lines), "")

    assert read_paths(Printing("lab"), ["sda", "sdb", "nvme0n1", "nullb0"]) == {
        "sda": "0000:01:00.0",
        "sdb": "0000:01:00.0",
        "nvme0n1": "0000:00:05.0",
    }


def test_the_disks_of_this_machine_have_the_addresses_that_sysfs_lists() -> None:
    disks = [path.name for path in Path("/sys/class/block").iterdir() if (path / "device").exists()]
    found = read_paths(RUNNER, [*disks, "no-such-disk"])
    assert "no-such-disk" not in found
    for disk, address in found.items():
        assert disk in [path.name for path in Path(f"/sys/bus/pci/devices/{address}").resolve().rglob(disk)]
