"""`virt-overhead doctor`: what it prints, which settings it holds, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import HostError, LabUnavailable
from harness.features.doctor.command import DoctorRequest, doctor, format_tuning
from harness.features.doctor.settings import ChangedSetting, Tuning
from harness.lab.inventory import HostSpec, Inventory, SshAddress
from tests.unit.sysfs_tree import DISK, KSM, QUEUE, Tree
from tests.unit.transport_servers import USER, sshd

HOST = Inventory("the test", "smoke", (HostSpec("node1", "local", ssh=None, disks=(DISK,)),))
LAB = """
[host.here]
kind = "local"
[host.here.disk.optane]
id = "/dev/disk/by-id/nvme-absent"
serial = "PHM1"
[host.node9]
kind = "ssh"
address = "127.0.0.1"
port = 1
key = "/absent"
"""
# A process that tunes a tree. It prints when it holds the settings, and the test ends it.
HOLDING = """
import sys
from harness.features.doctor.command import DoctorRequest, doctor
from tests.features.doctor.test_doctor_command import HOST
sys.exit(doctor(HOST, DoctorRequest(tune=True, window=0, root=sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests must not read the lab and the probes of this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "root")
    tree.slow()
    return tree


def as_root() -> None:
    if os.getuid() != 0:
        pytest.skip("settings are changed by root")


def test_this_machine_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "host here"
    assert any(line.startswith(("ok       free memory: ", "advice   free memory: ")) for line in lines)
    assert any("KVM: " in line for line in lines)
    assert lines[-1].startswith("host here: f")
    assert status == (1 if any(line.startswith("problem") for line in lines) else 0)
    assert err == ""


def test_with_json_standard_output_has_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    assert host["host"] == "here"
    assert {"check", "value", "level", "advice"} == set(host["findings"][0])
    assert {finding["level"] for finding in host["findings"]} <= {"ok", "unknown", "advice", "problem"}


def test_each_host_of_a_lab_file_is_checked_and_an_unreachable_one_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lab.toml").write_text(LAB)
    assert main(["doctor", "--lab=lab.toml"]) == 1
    out = capsys.readouterr().out
    assert "optane: device: no whole disk has the identity /dev/disk/by-id/nvme-absent (serial PHM1)" in out
    assert "node9" in out.splitlines()[-2] + out.splitlines()[-1]
    assert "Traceback" not in out


def test_one_host_of_a_lab_file_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab.toml").write_text(LAB)
    main(["doctor", "--lab=lab.toml", "--host=here", "--json"])
    assert [host["host"] for host in json.loads(capsys.readouterr().out)["hosts"]] == ["here"]


def test_the_doctor_does_not_start_the_embedded_lab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--host=lab"]) == 1
    assert capsys.readouterr().err == (
        "virt-overhead: the embedded lab is not running\n  -> start it with: virt-overhead lab up\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host=node1"], 'this machine: no host "node1"; allowed: here'),
        (["--lab=absent.toml"], "absent.toml"),
        (["--", "true"], "a COMMAND needs --tune\n  -> run: virt-overhead doctor --tune -- COMMAND"),
    ],
)
def test_contradictory_arguments_are_a_usage_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_command_runs_while_the_settings_are_held_and_its_status_counts(
    tree: Tree, capfd: pytest.CaptureFixture[str]
) -> None:
    as_root()
    command = ("sh", "-c", f"cat {tree.root}/{QUEUE}/scheduler; exit 7")
    assert doctor(HOST, DoctorRequest(tune=True, window=0, root=str(tree.root), command=command)) == 7
    out = capfd.readouterr().out
    assert f"host node1: changed {tree.root}/{QUEUE}/scheduler: mq-deadline -> none\nhost" in out
    assert "scaling_governor and 1 more: powersave -> performance\n" in out
    assert out.endswith("none\nhost node1: all settings restored\n")
    assert tree.read(f"{QUEUE}/scheduler") == "mq-deadline"


def test_with_json_changes_are_reported_on_standard_error(tree: Tree, capfd: pytest.CaptureFixture[str]) -> None:
    as_root()
    doctor(HOST, DoctorRequest(tune=True, as_json=True, window=0, root=str(tree.root), command=("true",)))
    out, err = capfd.readouterr()
    assert json.loads(out)["hosts"][0]["host"] == "node1"
    assert "all settings restored" in err


def test_the_command_line_takes_a_command_with_options_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    as_root()
    # This machine has no disks under test.
    assert main(["doctor", "--tune", "--", "sh", "-c", "echo held; exit 3"]) == 3
    assert "\nheld\n" in capfd.readouterr().out


def test_a_command_that_does_not_exist_is_a_usage_error_and_all_settings_are_restored(tree: Tree) -> None:
    as_root()
    with pytest.raises(Exception, match="cannot run no-such-command"):
        doctor(HOST, DoctorRequest(tune=True, window=0, root=str(tree.root), command=("no-such-command",)))
    assert tree.read(KSM) == "1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_settings_are_held_until_ctrl_c_or_a_signal_and_then_restored(tree: Tree, number: signal.Signals) -> None:
    as_root()
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever started the tests has them ignore this signal, by nohup or in the background")
    with holding(tree) as process:
        assert tree.read(f"{QUEUE}/scheduler") == "none"
        process.send_signal(number)
        out, err = process.communicate(timeout=600)
    assert out == "host node1: all settings restored\n"
    assert err == ""
    assert tree.read(f"{QUEUE}/scheduler") == "mq-deadline"


def test_under_nohup_a_hangup_ends_nothing(tree: Tree) -> None:
    as_root()
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{HOLDING}"
    process = python(ignoring, str(tree.root))
    read_until(process, "held until Ctrl-C\n")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    assert tree.read(KSM) == "0"
    process.terminate()
    process.communicate(timeout=600)
    assert tree.read(KSM) == "1"


def test_the_command_receives_ctrl_c_and_may_clean_up_before_settings_are_restored(tree: Tree) -> None:
    as_root()
    log = tree.root / "log"
    script = f"trap 'sleep 0.3; cat {tree.root}/{KSM} >{log}; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    source = HOLDING.replace("root=sys.argv[1]", "root=sys.argv[1], command=('sh', '-c', sys.argv[2])")
    process = python(source, str(tree.root), script)
    read_until(process, "ready\n")
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 5
    assert log.read_text() == "0\n"
    assert out == "host node1: all settings restored\n"
    assert tree.read(KSM) == "1"


def test_a_host_over_ssh_is_examined_and_tuned_as_this_machine_is(
    tree: Tree, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    as_root()
    (tmp_path / "server").mkdir()
    with sshd(tmp_path / "server") as server:
        address = SshAddress("127.0.0.1", server.port, USER, server.user_key, server.host_key)
        far = Inventory("the test", "smoke", (HostSpec("node1", "ssh", address, (DISK,)),))
        command = ("cat", f"{tree.root}/{QUEUE}/scheduler")
        assert doctor(far, DoctorRequest(tune=True, window=0, root=str(tree.root), command=command)) == 0
    out = capfd.readouterr().out
    assert "advice   optane: I/O scheduler: mq-deadline (nvme0n1)\n" in out
    assert out.endswith("\nnone\nhost node1: all settings restored\n")
    assert tree.read(f"{QUEUE}/scheduler") == "mq-deadline"


def test_what_a_killed_process_left_is_reported_and_restored_on_request(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    as_root()
    kill_while_holding(tree)
    doctor(HOST, DoctorRequest(window=0, root=str(tree.root)))
    out = capsys.readouterr().out
    assert "advice   tuned settings: 6 files, held by process " in out
    assert "-> virt-overhead doctor --restore" in out
    assert tree.read(KSM) == "0"
    doctor(HOST, DoctorRequest(restore=True, window=0, root=str(tree.root)))
    out = capsys.readouterr().out
    assert out.startswith("host node1: 6 settings restored that process ")
    assert "tuned settings" not in out
    assert tree.read(KSM) == "1"


def test_tuning_first_restores_what_a_killed_process_left(tree: Tree, capfd: pytest.CaptureFixture[str]) -> None:
    as_root()
    kill_while_holding(tree)
    assert doctor(HOST, DoctorRequest(tune=True, window=0, root=str(tree.root), command=("true",))) == 0
    out = capfd.readouterr().out
    assert out.startswith("host node1: 6 settings restored that process ")
    assert out.endswith("host node1: all settings restored\n")
    assert tree.read(KSM) == "1"


def test_settings_of_a_running_process_are_not_restored(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    as_root()
    with holding(tree) as process:
        assert doctor(HOST, DoctorRequest(restore=True, window=0, root=str(tree.root))) == 1
        assert f"process {process.pid} of " in capsys.readouterr().out
        assert tree.read(KSM) == "0"
        with pytest.raises(HostError, match="has already changed settings"):
            doctor(HOST, DoctorRequest(tune=True, window=0, root=str(tree.root), command=("true",)))
        assert tree.read(KSM) == "0"


def test_settings_are_not_changed_under_a_run_that_measures(tree: Tree) -> None:
    as_root()
    with (
        tree.leased("run7"),
        pytest.raises(LabUnavailable, match=r"host node1 is being measured by another run \(run7 of .*, process "),
    ):
        doctor(HOST, DoctorRequest(tune=True, window=0, root=str(tree.root), command=("true",)))
    assert tree.read(KSM) == "1"


def test_the_summary_of_a_tuning_has_a_line_for_files_that_are_alike() -> None:
    changed = tuple(
        ChangedSetting(f"/sys/policy{cpu}/scaling_governor", "powersave", "performance") for cpu in range(64)
    )
    assert list(format_tuning("a", Tuning(changed, ("/sys/x stays 1: Invalid argument",)))) == [
        "host a: changed /sys/policy0/scaling_governor and 63 more: powersave -> performance",
        "host a: not changed: /sys/x stays 1: Invalid argument",
    ]
    assert list(format_tuning("a", Tuning())) == ["host a: nothing to change"]


def kill_while_holding(tree: Tree) -> None:
    with holding(tree) as process:
        process.kill()
        process.wait()
    assert tree.read(KSM) == "0"


@contextmanager
def holding(tree: Tree) -> Iterator[subprocess.Popen[str]]:
    """A process that holds better settings on the tree."""
    process = python(HOLDING, str(tree.root))
    try:
        read_until(process, "held until Ctrl-C\n")
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=600)


def python(source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", source, *arguments],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], last: str) -> None:
    """Read what the process prints up to this line."""
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert last in lines, process.stderr.read() if process.stderr else ""
