"""The rule that keeps udev from probing what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import HostError
from harness.lab.created import Entry
from harness.lab.pin import TAG
from harness.layout.disks import RULES, UdevRule, format_rules
from tests.unit.loop_disks import RUNNER

RUN = RunId("20260101-000000-abcd")
FIRST = "# virt-overhead 0: no probes"
NO_DISK = "voh-no-such-disk"


VOLUMES = "*voh--20260101--000000--abcd*|voh-20260101-000000-abcd*"


def test_the_rules_are_for_the_disk_and_what_the_run_builds_only() -> None:
    assert format_rules(RUN, "sdb").splitlines() == [
        'ACTION!="remove", SUBSYSTEM=="block", KERNEL=="sdb|sdb[0-9]*", OPTIONS:="nowatch"',
        f'ACTION!="remove", SUBSYSTEM=="block", ENV{{DM_NAME}}=="{VOLUMES}", OPTIONS:="nowatch"',
        'ACTION!="remove", SUBSYSTEM=="block", ENV{MD_DEVNAME}=="voh-20260101-000000-abcd*", OPTIONS:="nowatch"',
    ]


def test_on_a_storage_in_use_the_rules_are_for_the_volumes_of_the_run_only() -> None:
    assert format_rules(RUN).splitlines() == format_rules(RUN, "sdb").splitlines()[1:]


def test_partitions_of_a_disk_whose_name_ends_with_a_digit() -> None:
    assert 'KERNEL=="nvme0n1|nvme0n1p[0-9]*"' in format_rules(RUN, "nvme0n1")


@pytest.fixture
def udevadm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A udevadm that writes down what it is asked."""
    asked = tmp_path / "asked"
    program = tmp_path / "bin" / "udevadm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return asked


def test_the_own_rule_is_removed_and_udev_reads_the_rules_again(tmp_path: Path, udevadm: Path) -> None:
    rule = tmp_path / "99.rules"
    rule.write_text(f"{FIRST}\n{format_rules(RUN, NO_DISK)}")
    thing = UdevRule.model_construct(path=str(rule), first=FIRST, disk=NO_DISK)
    assert thing.remove(RUNNER).outcome == "removed"
    assert not rule.exists()
    assert udevadm.read_text() == "control --reload\n"
    assert thing.remove(RUNNER).outcome == "absent"


def test_nothing_is_triggered_for_a_rule_without_a_disk(tmp_path: Path, udevadm: Path) -> None:
    rule = tmp_path / "99.rules"
    rule.write_text(f"{FIRST}\n{format_rules(RUN)}")
    assert UdevRule.model_construct(path=str(rule), first=FIRST).remove(RUNNER).outcome == "removed"
    assert udevadm.read_text() == "control --reload\n"


def test_the_rule_of_somebody_else_stays(tmp_path: Path, udevadm: Path) -> None:
    rule = tmp_path / "99.rules"
    rule.write_text("# mine\n")
    assert UdevRule.model_construct(path=str(rule), first=FIRST, disk=NO_DISK).remove(RUNNER).outcome == "replaced"
    assert rule.read_text() == "# mine\n"
    assert not udevadm.exists()


def test_a_rule_that_udev_does_not_drop_stays_in_the_log(tmp_path: Path, udevadm: Path) -> None:
    rule = tmp_path / "99.rules"
    rule.write_text(f"{FIRST}\n")
    (tmp_path / "bin" / "udevadm").write_text("#!/bin/sh\necho no answer >&2\nexit 1\n")
    with pytest.raises(HostError, match="no answer"):
        UdevRule.model_construct(path=str(rule), first=FIRST, disk=NO_DISK).remove(RUNNER)
    assert not udevadm.exists()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/udev/rules.d/60-persistent-storage.rules",
        "/run/udev/rules.d/60-mine.rules",
        f"{RULES}/99-{TAG}-{RUN}-sdb.rules/../../../../etc/passwd",
        f"/etc{RULES}/99-{TAG}-{RUN}-sdb.rules",
        f"{RULES}/99-{TAG}-{RUN}-sdb.rules\n",
    ],
)
def test_a_record_of_a_file_that_no_run_writes_is_not_valid(path: str) -> None:
    record = {"kind": "udev-rule", "disks": [], "path": path, "first": FIRST, "disk": ""}
    entry = Entry("/log", RUN, "1-udev-rule.json", record)
    with pytest.raises(HostError, match=r"path = .*: allowed: a file of rules that a run writes"):
        entry.parsed([UdevRule])
    whole = replace(entry, record={**entry.record, "path": f"{RULES}/99-{TAG}-{RUN}-nvme0n1.rules"})
    assert isinstance(whole.parsed([UdevRule]), UdevRule)
