"""Temperature and wear by smartctl and nvme, and what MegaRAID tools say of volumes: documented outputs, in short.

The outputs were written for these tests, with the keys and types of public ones: of smartmontools' nvmeprint.cpp,
ataprint.cpp and scsiprint.cpp and the outputs in the tests of prometheus-community/smartctl_exporter; of nvme-cli's
nvme-print-json.c, older and newer; of storcli in the tests of yunionio/cloudpods and storrest. None was recorded here,
and no MegaRAID controller has run any of this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.errors import HostError
from harness.features.disk_health.programs import describe_arrays, read_health
from harness.lab.facts import HealthFound, HostFacts
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.model.disk import ArrayFacts, Controller, DiskFacts, DiskHealth

NVME = DiskFacts(device="nvme0n1", transport="nvme")
SATA = DiskFacts(device="sda", transport="sata")
SAS = DiskFacts(device="sdb", transport="sas")
WITH_SMARTCTL = HostFacts({"tool_smartctl": "/usr/sbin/smartctl", "tool_nvme": "/usr/sbin/nvme"})
WITH_NVME = HostFacts({"tool_nvme": "/usr/sbin/nvme"})

SMARTCTL_NVME = {
    "json_format_version": [1, 0],
    "smartctl": {"version": [7, 4], "exit_status": 0},
    "device": {"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
    "model_name": "Samsung SSD 990 PRO 2TB",
    "firmware_version": "4B2QJXD7",
    "temperature": {"current": 41},
    "power_on_time": {"hours": 3150},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "temperature": 41,
        "percentage_used": 2,
        "data_units_read": 19_446_553,
        "data_units_written": 25_771_349,
        "media_errors": 0,
    },
}
SMARTCTL_SATA = {
    "smartctl": {"exit_status": 4},
    "device": {"name": "/dev/sda", "type": "sat", "protocol": "ATA"},
    "model_name": "Samsung SSD 860 EVO 500GB",
    "firmware_version": "RVT04B6Q",
    "logical_block_size": 512,
    "temperature": {"current": 31},
    "power_on_time": {"hours": 12000},
    "ata_device_statistics": {
        "pages": [
            {"number": 1, "table": [{"name": "Logical Sectors Written", "value": 1_000_000}]},
            {"number": 7, "table": [{"name": "Percentage Used Endurance Indicator", "value": 7}]},
        ]
    },
}
SMARTCTL_SAS = {
    "device": {"name": "/dev/sdb", "type": "scsi", "protocol": "SCSI"},
    "scsi_percentage_used_endurance_indicator": 4,
    "temperature": {"current": 35, "drive_trip": 74},
    "scsi_error_counter_log": {"write": {"gigabytes_processed": "12.699"}},
}
SMARTCTL_REFUSED = {
    "smartctl": {
        "exit_status": 2,
        "messages": [{"string": "Smartctl open device: /dev/sda failed: Permission denied", "severity": "error"}],
    }
}
NVME_CLI = {
    "critical_warning": 0,
    "temperature": 314,
    "avail_spare": 100,
    "percent_used": 2,
    "data_units_written": 25_771_349,
    "power_on_hours": 3150,
    "media_errors": 0,
}


class Answering(LocalRunner):
    """A host whose programs print `answers`, in this order, with the exit status 4."""

    def __init__(self, *answers: object) -> None:
        super().__init__("host node1")
        self.answers = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        self.asked.append(tuple(argv))
        if not self.answers:
            raise HostError("host node1: the connection is lost")
        return Completed(tuple(argv), 4, self.answers.pop(0), "")


def health(disk: DiskFacts, answer: object, host: HostFacts = WITH_SMARTCTL) -> DiskHealth:
    found = read_health(Answering(answer), host, disk)
    assert found.why is None
    assert found.health is not None
    return replace(found.health, at=0.0)


def test_an_nvme_disk_by_smartctl() -> None:
    assert health(NVME, SMARTCTL_NVME) == DiskHealth(
        at=0.0,
        source="smartctl",
        celsius=41,
        used_percent=2,
        written_bytes=25_771_349 * 512_000,
        hours=3150,
        errors=0,
    )


@pytest.mark.parametrize("written", [25_771_349, 25_771_349.0, "25771349", "25,771,349"])
def test_an_nvme_disk_by_nvme_cli_of_any_version(written: object) -> None:
    found = health(NVME, {**NVME_CLI, "data_units_written": written}, WITH_NVME)
    assert found == replace(health(NVME, SMARTCTL_NVME), source="nvme")


def test_a_sata_disk_by_its_device_statistics() -> None:
    expected = DiskHealth(at=0.0, source="smartctl", celsius=31, used_percent=7, written_bytes=512_000_000, hours=12000)
    assert health(SATA, SMARTCTL_SATA) == expected
    newer = {**SMARTCTL_SATA, "endurance_used": {"current_percent": 8}}
    assert health(SATA, newer) == replace(expected, used_percent=8)


def test_a_sas_disk_by_its_error_counters() -> None:
    expected = DiskHealth(at=0.0, source="smartctl", celsius=35, used_percent=4, written_bytes=12_699_000_000)
    assert health(SAS, SMARTCTL_SAS) == expected


def test_smartctl_knows_the_whole_name_of_a_disk() -> None:
    found = read_health(Answering(SMARTCTL_SATA), WITH_SMARTCTL, SATA)
    assert (found.model, found.firmware) == ("Samsung SSD 860 EVO 500GB", "RVT04B6Q")


def test_a_disk_is_only_read() -> None:
    runner = Answering(SMARTCTL_SATA, SMARTCTL_NVME, NVME_CLI)
    for host, disk in ((WITH_SMARTCTL, SATA), (WITH_SMARTCTL, NVME), (WITH_NVME, NVME)):
        read_health(runner, host, disk)
    assert runner.asked == [
        ("/usr/sbin/smartctl", "--json=c", "-i", "-A", "-l", "devstat", "/dev/sda"),
        ("/usr/sbin/smartctl", "--json=c", "-i", "-A", "/dev/nvme0n1"),
        ("/usr/sbin/nvme", "smart-log", "/dev/nvme0n1", "-o", "json"),
    ]


@pytest.mark.parametrize(("disk", "host"), [(NVME, HostFacts({})), (SATA, WITH_NVME)], ids=["nvme", "sata"])
def test_a_missing_tool_is_named_with_its_package(disk: DiskFacts, host: HostFacts) -> None:
    runner = Answering()
    found = read_health(runner, host, disk)
    assert found.why is not None
    assert "host node1 has no smartctl: apt-get install smartmontools" in found.why
    assert not runner.asked


@pytest.mark.parametrize("transport", [None, "loop", "dm", "md", "virtio"])
def test_what_has_no_health_is_not_asked_for_it(transport: str | None) -> None:
    runner = Answering()
    assert read_health(runner, WITH_SMARTCTL, replace(SATA, transport=transport)) == HealthFound()
    assert not runner.asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (SMARTCTL_REFUSED, "Smartctl open device: /dev/sda failed: Permission denied"),
        ("smartctl 6.6 2017-11-05\nUNRECOGNIZED OPTION: json=c", "cannot be read"),
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ({"device": {}, "temperature": {"current": "hot"}}, "cannot be read"),
        ({"device": {}, "temperature": 41}, "cannot be read"),
        ({"device": {}, "power_on_time": {"hours": -1}}, '"-1" is not a count'),
        ({"device": {}, "power_on_time": {"hours": 1e300}}, "is not a count"),
        ('{"device": {}, "temperature": {"current": NaN}}', "cannot be read"),
        ("[" * 5000, "nested"),
    ],
)
def test_an_output_that_cannot_be_used_is_a_reason_and_no_failure(answer: object, why: str) -> None:
    found = read_health(Answering(answer), WITH_SMARTCTL, SATA)
    assert found.health is None
    assert found.why is not None
    assert found.why.startswith("temperature and wear are not known: host node1: ")
    assert why in found.why


def test_a_lost_connection_is_a_reason_and_no_failure() -> None:
    found = read_health(Answering(), WITH_SMARTCTL, SATA)
    assert found.why == "temperature and wear are not known: host node1: the connection is lost"


STORCLI = HostFacts({"tool_storcli64": "/opt/MegaRAID/storcli/storcli64"})
SUCCESS = {"Controller": 0, "Status": "Success", "Description": "None"}
CONTROLLER = {
    "Controllers": [
        {
            "Command Status": SUCCESS,
            "Response Data": {
                "Product Name": "LSI MegaRAID SAS 9260-4i",
                "PCI Address": "00:06:00:00",
                "FW Package Build": "12.12.0-0139",
                "FW Version": "2.130.373-2022",
            },
        }
    ]
}
VOLUMES = {
    "Controllers": [
        {
            "Command Status": SUCCESS,
            "Response Data": {
                "/c0/v0": [{"DG/VD": "0/0", "TYPE": "RAID1", "State": "Optl", "Cache": "RWBD", "Size": "446.625 GB"}],
                "PDs for VD 0": [{"EID:Slt": "8:0", "Med": "SSD"}, {"EID:Slt": "8:1", "Med": "SSD"}],
                "VD0 Properties": {
                    "Strip Size": "256 KB",
                    "Write Cache(initial setting)": "WriteBack",
                    "Disk Cache Policy": "Disk's Default",
                    "OS Drive Name": "/dev/sda",
                },
            },
        }
    ]
}
BEHIND = replace(SATA, disk_class="ssd", controller=Controller("Broadcom", "MegaRAID SAS", "megaraid_sas"))


def test_a_volume_of_a_controller_has_its_cache_policy_and_strip_size() -> None:
    passed_through = replace(BEHIND, device="sdc")
    runner = Answering(CONTROLLER, VOLUMES)
    found = describe_arrays(runner, STORCLI, {"sda": BEHIND, "sdc": passed_through, "nvme0n1": NVME})
    assert found.disks["sda"].disk_class == "array"
    assert found.disks["sda"].array == ArrayFacts(
        level="RAID1",
        chunk_bytes=256 << 10,
        disks=2,
        cache_policy="RWBD, WriteBack, disk cache: Disk's Default",
        source="storcli64",
    )
    expected = Controller("Broadcom", "LSI MegaRAID SAS 9260-4i", "megaraid_sas", "2.130.373-2022")
    assert found.disks["sda"].controller == expected
    assert (found.disks["sdc"], found.disks["nvme0n1"]) == (passed_through, NVME)
    assert not found.notes
    assert [command[1:] for command in runner.asked] == [("/call", "show", "J"), ("/call/vall", "show", "all", "J")]


def test_without_such_a_controller_no_tool_is_run() -> None:
    runner = Answering()
    assert describe_arrays(runner, STORCLI, {"sda": SATA}).disks == {"sda": SATA}
    assert not runner.asked


def test_without_its_tool_the_strip_size_is_not_known() -> None:
    found = describe_arrays(Answering(), HostFacts({}), {"sda": BEHIND})
    assert found.disks == {"sda": BEHIND}
    assert "host node1 has neither storcli64 nor perccli64" in found.notes["sda"]


@pytest.mark.parametrize("answer", ["", "[]", '{"Controllers": 1}', '{"Controllers": [{"Command Status": {}}, 2]}'])
def test_an_output_of_the_tool_that_cannot_be_used_is_a_reason(answer: str) -> None:
    found = describe_arrays(Answering(CONTROLLER, answer), STORCLI, {"sda": BEHIND})
    assert found.disks == {"sda": BEHIND}
    assert found.notes["sda"].startswith("cache policy and strip size of its controller are not known: host node1: ")
