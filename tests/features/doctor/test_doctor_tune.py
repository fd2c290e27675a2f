"""Settings are held for a while and put back: at the end, after a failure, at Ctrl-C, and after a kill."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.features.doctor.devices import examine, is_dead
from harness.features.doctor.machine import HostFinding, Level, list_settings, look
from harness.features.doctor.settings import (
    ChangedSetting,
    SettingsRecord,
    Tunable,
    hold_settings,
    read_settings,
    restore,
)
from harness.lab.inventory import DiskById
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.sysfs_tree import DISK, FACTS, KSM, POLICY, QUEUE, Tree

RUNNER = LocalRunner("host node1")
BETTER = {
    f"{POLICY}0/scaling_governor": "performance",
    f"{POLICY}1/scaling_governor": "performance",
    f"{QUEUE}/scheduler": "none",
    f"{QUEUE}/iostats": "1",
    KSM: "0",
}
BEFORE = {
    f"{POLICY}0/scaling_governor": "powersave",
    f"{POLICY}1/scaling_governor": "powersave",
    f"{QUEUE}/scheduler": "mq-deadline",
    f"{QUEUE}/iostats": "0",
    KSM: "1",
}


class FlakyRunner(LocalRunner):
    """This machine behind a connection that is slow, or lost."""

    def __init__(self) -> None:
        super().__init__("host node1")
        self.delay = 0.0
        self.lost = False

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        if self.lost:
            raise HostError("connection lost")
        time.sleep(self.delay)
        return super().run(argv, deadline=deadline, stdin=stdin, check=check)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "root")
    tree.slow()
    return tree


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return f"{tmp_path}/root{LEASE_DIRECTORY}"


def findings(tree: Tree) -> list[HostFinding]:
    return examine(look(RUNNER, FACTS, [DISK], root=str(tree.root), window=0))


def interrupt_twice(runner: FlakyRunner) -> None:
    """Ctrl-C now, and again while the first command after it is slow."""
    runner.delay = 0.6
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    os.kill(os.getpid(), signal.SIGINT)


def replace_by_directory(path: Path) -> None:
    """No process can write a value to a directory, not even as root."""
    path.unlink()
    path.mkdir()


def requesting(*settings: Tunable) -> list[HostFinding]:
    return [HostFinding("a check", "a value", Level.ADVICE, "a reason", "advice", settings)]


def test_settings_are_held_in_the_block_and_restored_at_its_end(tree: Tree, directory: str) -> None:
    with hold_settings(RUNNER, list_settings(findings(tree)), directory=directory) as tuning:
        assert tree.settings == BETTER
        assert read_settings(RUNNER, f"{directory}/tuned") is not None
    assert tree.settings == BEFORE
    assert read_settings(RUNNER, f"{directory}/tuned") is None
    assert list(Path(directory).iterdir()) == []
    assert ChangedSetting(f"{tree.root}/{QUEUE}/scheduler", "mq-deadline", "none") in tuning.changed
    assert len(tuning.changed) == 5
    assert tuning.refused == ()


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_settings_are_restored_after_any_failure(tree: Tree, directory: str, failure: type[BaseException]) -> None:
    with pytest.raises(failure), hold_settings(RUNNER, list_settings(findings(tree)), directory=directory):
        raise failure
    assert tree.settings == BEFORE
    assert read_settings(RUNNER, f"{directory}/tuned") is None


def test_a_real_ctrl_c_restores_settings_and_a_second_one_does_not_stop_that(tree: Tree, directory: str) -> None:
    runner = FlakyRunner()
    with pytest.raises(KeyboardInterrupt), hold_settings(runner, list_settings(findings(tree)), directory=directory):
        interrupt_twice(runner)
    assert tree.settings == BEFORE
    assert read_settings(RUNNER, f"{directory}/tuned") is None


def test_without_a_requested_setting_the_host_is_not_changed(directory: str) -> None:
    with hold_settings(
        RUNNER, list_settings([HostFinding("a check", "fine", Level.OK, "a reason")]), directory=directory
    ) as tuning:
        assert tuning.changed == ()
    assert not Path(directory).exists()


def test_a_setting_that_the_kernel_refuses_is_reported_and_the_others_are_held(tree: Tree, directory: str) -> None:
    (tree.root / "sys/stubborn").mkdir()
    wanted = requesting(Tunable(f"{tree.root}/sys/stubborn", "1"), Tunable(f"{tree.root}/{KSM}", "0"))
    with hold_settings(RUNNER, list_settings(wanted), directory=directory) as tuning:
        assert tree.read(KSM) == "0"
    assert [change.path for change in tuning.changed] == [f"{tree.root}/{KSM}"]
    (refused,) = tuning.refused
    assert refused.startswith(f"{tree.root}/sys/stubborn is still ")
    assert "irectory" in refused
    assert tree.read(KSM) == "1"


def test_a_setting_that_cannot_be_restored_is_named_with_its_value_and_a_remedy(tree: Tree, directory: str) -> None:
    path = tree.root / KSM
    with (
        pytest.raises(HostError, match=rf"host node1: settings were not restored: {path} is still .*irectory") as error,
        hold_settings(RUNNER, list_settings(findings(tree)), directory=directory),
    ):
        replace_by_directory(path)
    assert error.value.hint is not None
    assert f"echo 1 > {path}" in error.value.hint
    assert QUEUE not in error.value.hint
    record = read_settings(RUNNER, f"{directory}/tuned")
    assert record is not None
    assert record.before == (Tunable(str(path), "1"),)
    path.rmdir()
    path.write_text("0\n")
    restore(RUNNER, record, directory=directory)
    assert tree.settings == BEFORE
    assert read_settings(RUNNER, f"{directory}/tuned") is None


def test_if_the_host_is_lost_the_error_names_every_changed_file(tree: Tree, directory: str) -> None:
    runner = FlakyRunner()
    with (
        pytest.raises(HostError, match="host node1: settings were not restored: connection lost") as error,
        hold_settings(runner, list_settings(findings(tree)), directory=directory),
    ):
        runner.lost = True
    assert error.value.hint is not None
    for path, value in BEFORE.items():
        assert f"echo {value} > {tree.root}/{path}" in error.value.hint


def test_a_file_that_no_longer_exists_is_not_a_failure(tree: Tree, directory: str) -> None:
    with hold_settings(RUNNER, list_settings(findings(tree)), directory=directory):
        tree.remove(f"{QUEUE}/scheduler")
    assert tree.read(KSM) == "1"
    assert read_settings(RUNNER, f"{directory}/tuned") is None


def test_settings_that_another_process_holds_are_not_changed(tree: Tree, directory: str) -> None:
    with hold_settings(RUNNER, list_settings(findings(tree)), directory=directory):
        with (
            pytest.raises(HostError, match=rf"process {os.getpid()} of .* has already changed settings") as error,
            hold_settings(RUNNER, list_settings(requesting(Tunable(f"{tree.root}/{KSM}", "2"))), directory=directory),
        ):
            pass
        assert tree.settings == BETTER
    assert "virt-overhead doctor --restore" in str(error.value)
    assert tree.settings == BEFORE


def test_if_the_old_values_cannot_be_stored_nothing_is_changed(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(HostError, match="no setting was changed, because the old values cannot be stored"),
        hold_settings(RUNNER, list_settings(findings(tree)), directory=str(tmp_path / "file" / "below")),
    ):
        pass
    assert tree.read(KSM) == "1"
    assert tree.read(f"{QUEUE}/scheduler") == "none [mq-deadline] bfq"


def test_the_record_is_on_the_host_before_anything_is_changed(tree: Tree, directory: str) -> None:
    with hold_settings(RUNNER, list_settings(findings(tree)), directory=directory):
        record = json.loads((Path(directory) / "tuned").read_text())
    assert dict(record["before"]) == {f"{tree.root}/{path}": value for path, value in BEFORE.items()} | {
        f"{tree.root}/{QUEUE}/nr_requests": "1023"
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"machine": "a"}', '{"machine": "a", "pid": 1, "before": [1]}'])
def test_other_text_than_a_record_is_none(text: str) -> None:
    assert SettingsRecord.parse(text) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/etc/shadow", "root::1::::::"),
        ("/proc/sysrq-trigger", "b"),
        ("/sys/../etc/shadow", "x"),
        ("/sys/kernel/mm/ksm/run", "1\n/etc/shadow\tx"),
        ("/sys/kernel/mm/ksm/run\t1\n/etc/shadow", "x"),
        ("sys/kernel/mm/ksm/run", "1"),
    ],
)
def test_a_record_of_a_file_that_is_no_setting_is_none(path: str, value: str) -> None:
    record = SettingsRecord(
        "a", 1, "1", (Tunable("/sys/kernel/mm/ksm/run", "1"), Tunable("/proc/sys/vm/swappiness", "0"))
    )
    assert SettingsRecord.parse(record.text()) == record
    planted = replace(record, before=(*record.before, Tunable(path, value)))
    assert SettingsRecord.parse(planted.text()) is None


def test_what_the_driver_sets_with_a_governor_is_restored_after_it(tree: Tree, directory: str) -> None:
    preference = f"{POLICY}1/energy_performance_preference"
    tree.write(preference, "balance_power")
    with hold_settings(RUNNER, list_settings(findings(tree)), directory=directory):
        tree.write(preference, "performance")
    assert tree.read(preference) == "balance_power"


def test_the_start_time_distinguishes_a_process_from_a_later_one_with_the_same_id() -> None:
    mine = SettingsRecord.of_this_process(())
    assert (mine.is_alive, is_dead(mine)) == (True, False)
    later = SettingsRecord(mine.machine, mine.pid, "1", ())
    assert (later.is_alive, is_dead(later)) == (False, True)
    elsewhere = SettingsRecord("elsewhere", mine.pid, mine.started, ())
    assert (elsewhere.is_alive, is_dead(elsewhere)) == (False, False)


def test_a_real_disk_gets_its_scheduler_back_with_the_tunables_that_the_kernel_reset(
    tmp_path: Path, directory: str
) -> None:
    require()
    with loop(sparse(tmp_path / "disk.img", 16 << 20)) as device:
        queue = Path("/sys/block", device.rpartition("/")[2], "queue")
        if "mq-deadline" not in (queue / "scheduler").read_text():
            pytest.skip("this kernel has no mq-deadline")
        (queue / "rotational").write_text("0")
        (queue / "scheduler").write_text("mq-deadline")
        (queue / "nr_requests").write_text("77")
        (queue / "iosched" / "fifo_batch").write_text("5")
        state = look(RUNNER, FACTS, [DiskById("sata_ssd", device, "S1", destroy=True)], window=0)
        wanted = [finding for finding in examine(state) if finding.check.startswith("sata_ssd")]
        with hold_settings(RUNNER, list_settings(wanted), directory=directory) as tuning:
            assert "[none]" in (queue / "scheduler").read_text()
            assert (queue / "nr_requests").read_text() != "77\n"
        assert [(change.before, change.after) for change in tuning.changed] == [("mq-deadline", "none")]
        assert "[mq-deadline]" in (queue / "scheduler").read_text()
        assert (queue / "nr_requests").read_text() == "77\n"
        assert (queue / "iosched" / "fifo_batch").read_text() == "5\n"
