"""The command line where there is nothing to work on: what it says, and with which status it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import libvirt
import pytest

from harness.cli import PYTEST, main
from harness.config.names import RunId
from harness.features.embedded.lab_host import LabMachine, LabMachineState
from harness.features.reap import commands as reaping
from harness.lab.created import CreationLog, Processes, read_log
from harness.lab.inventory import HostSpec
from harness.lab.lease import lease
from harness.lab.transport.local import LocalRunner
from harness.results import RunStore
from tests.build import RUN_ID, synthetic_run
from tests.unit.loop_disks import NO_PROCESS


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lab of this machine's is seen, or ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def usage_error(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_help_lists_every_command_and_where_measuring_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    commands = (
        "run",
        "quickstart",
        "init",
        "images",
        "lab",
        "doctor",
        "calibrate",
        "report",
        "compare",
        "baseline",
        "reap",
    )
    for command in commands:
        assert re.search(rf"^ +{command}\s", done.stdout, re.MULTILINE)
    assert "pytest -k optane" in done.stdout


def test_a_lab_that_does_not_run_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "status"]) == 3
    assert capsys.readouterr() == ("not running\n", "")


def test_lab_down_without_a_lab_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "down"]) == 0
    assert capsys.readouterr() == ("no lab host was running\n", "")


def test_logging_in_to_no_lab_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "ssh"]) == 1
    assert capsys.readouterr() == (
        "",
        "virt-overhead: the embedded lab is not running\n  -> start it with: virt-overhead lab up\n",
    )


def test_a_lab_that_does_not_run_has_nothing_to_reap(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reap"]) == 0
    assert capsys.readouterr() == ("nothing was left\n", "")


def test_a_host_of_ones_own_is_reaped_also_where_it_is_called_as_the_embedded_labs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab.toml").write_text('[host.lab]\nkind = "local"\n')
    reaped: list[bool] = []

    def reap_host(spec: HostSpec, *_: object, remove: bool, force: bool) -> tuple[list[str], bool]:
        assert (spec.name, force) == ("lab", False)
        reaped.append(remove)
        return ["a guest"], False

    monkeypatch.setattr(reaping, "_reap_host", reap_host)
    assert main(["reap", "--lab", "lab.toml"]) == 0
    assert main(["reap", "--lab", "lab.toml", "--yes"]) == 0
    assert reaped == [False, True]
    listed, only_listed, removed = capsys.readouterr().out.splitlines()
    assert listed == removed == "host lab: a guest"
    assert only_listed.startswith("nothing was removed; `virt-overhead reap --yes` removes only what is listed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look for what runs have left")
def test_reaping_needs_neither_images_nor_a_guest_that_boots(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab.toml").write_text('[host.here]\nkind = "local"\n')
    cache = tmp_path / "cache"
    monkeypatch.setenv("VIRT_OVERHEAD_CACHE", str(cache))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    opened = libvirt.open
    monkeypatch.setattr(libvirt, "open", lambda _uri: opened("test:///default"))
    # Not the directories of this machine's own runs.
    created = str(tmp_path / "created")
    monkeypatch.setattr("harness.lab.lease.lease", partial(lease, directory=str(tmp_path / "lease")))
    monkeypatch.setattr("harness.lab.created.read_log", lambda runner: read_log(runner, created))
    CreationLog(LocalRunner(), RunId("20260101-000000-abcd"), created).record(Processes(mark=NO_PROCESS))
    assert main(["reap", "--lab", "lab.toml"]) == 0
    assert "host here: processes that measure, of run 20260101-000000-abcd" in capsys.readouterr().out
    assert main(["reap", "--lab", "lab.toml", "--yes"]) == 0
    assert list((tmp_path / "created").iterdir()) == []
    assert not cache.exists()


@pytest.fixture
def lab_host(tmp_path: Path) -> Iterator[LabMachine]:
    """A process that looks like a lab host that runs."""
    state = LabMachineState(tmp_path / "state" / "virt-overhead" / "lab")
    state.directory.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(state.pidfile)]) as process:
        machine = LabMachine(process.pid, 2222, "/key", "ssh-ed25519 AAAA", "tcg", "a test", (), 0.0)
        state.record.write_text(json.dumps(asdict(machine)))
        yield machine
        process.kill()


def test_logging_in_to_the_lab_checks_its_key_and_leaves_no_temporary_file(
    lab_host: LabMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    ssh.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    for _ in range(2):
        words = subprocess.run(
            [sys.executable, "-m", "harness.cli", "lab", "ssh", "true"],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    assert words[-2:] == ["root@127.0.0.1", "true"]
    (known,) = [word.split('"')[1] for word in words if word.startswith("UserKnownHostsFile=")]
    assert Path(known).read_text() == f"lab {lab_host.host_key}\n"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("arguments", [["report"], ["report", "reports/absent"], ["report", "--markdown", "absent"]])
def test_the_report_of_a_missing_run_is_one_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("virt-overhead: ")
    assert (arguments[-1] if arguments[-1] != "report" else "reports/latest") in err
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} <= {"state"}


def printed(run: Path, output: str) -> subprocess.CompletedProcess[str]:
    """The report of `run`, with its output going where the shell says."""
    command = f'"$0" -m harness.cli report "$1" {output}'
    words = ["bash", "-o", "pipefail", "-c", command, sys.executable, str(run)]
    return subprocess.run(words, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True, check=False)


def test_an_output_that_cannot_be_written_is_one_message_and_a_failure(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    store.write_results(synthetic_run(modes=["host", "passthrough"], workloads=["randread-4k"]))
    full = printed(store.path, "> /dev/full")
    assert (full.returncode, full.stderr) == (1, "virt-overhead: No space left on device\n")
    cut = printed(store.path, "| true")
    assert cut.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure"], 'invalid choice: "measure"'),
        (["reprot"], '(did you mean "report"?)'),
        (["doctor", "--jsn"], '(did you mean "--json"?)'),
        (["compare", "a", "b", "--metric=iop"], '(did you mean "iops"?)'),
        (["lab"], "the following arguments are required: ACTION"),
        (["lab", "restart"], 'invalid choice: "restart"'),
        (["lab", "status", "--verbose"], "unrecognized arguments: --verbose"),
    ],
)
def test_a_command_that_is_none_is_a_usage_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error(*arguments) == 2
    assert said in capsys.readouterr().err


def test_a_lab_file_that_cannot_be_used_is_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text('[host.a]\nkind = "lokal"\n')
    assert main(["reap", "--lab", "lab.toml"]) == 2
    assert 'lab.toml: host.a.kind = "lokal": allowed: local, ssh' in capsys.readouterr().err


def test_a_command_for_the_doctor_needs_tune(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--", "true"]) == 2
    assert capsys.readouterr().err == (
        "virt-overhead: a COMMAND needs --tune\n  -> run: virt-overhead doctor --tune -- COMMAND\n"
    )


@pytest.mark.parametrize(
    ("word", "option"), [("lab.toml", "--lab"), ("--lba=lab.toml", "--lab"), ("host", "--host"), ("--yess", "--yes")]
)
def test_a_word_that_a_command_does_not_take_is_answered_with_the_nearest_option(
    word: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error("reap", word) == 2
    assert f'unrecognized arguments: {word} (did you mean "{option}"?)' in capsys.readouterr().err


def test_a_lab_file_in_the_place_of_a_command_is_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "lab.toml"]) == 2
    assert capsys.readouterr().err == "virt-overhead: lab.toml: a lab file is an option\n  -> --lab=lab.toml\n"


def test_holding_settings_and_putting_them_back_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_error("doctor", "--tune", "--restore") == 2
    assert "argument --restore: not allowed with argument --tune" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "calibrate", "reap"])
def test_a_lab_file_that_is_not_there_is_a_usage_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--lab", "lap.toml"]) == 2
    assert "lap.toml: no such lab file" in capsys.readouterr().err


def test_without_an_option_the_lab_is_that_of_a_run_in_this_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` measures lab.toml, so what it left is on these hosts: "nothing was left" would be about another lab."""
    (tmp_path / "lab.toml").write_text('[host.node1]\nkind = "local"\n')
    assert main(["reap", "--host", "lab"]) == 2
    assert 'lab.toml: no host "lab"; allowed: node1' in capsys.readouterr().err
    monkeypatch.setenv("VIRT_OVERHEAD_LAB", "embedded")
    assert main(["reap"]) == 0
    assert capsys.readouterr().out == "nothing was left\n"


def test_an_unknown_host_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reap", "--host", "node1"]) == 2
    assert 'no host "node1"; allowed: lab' in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() != 0, reason="root mounts it")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_answers_of_a_run_in_a_read_only_directory_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    store.write_results(synthetic_run(status="complete"))
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", tmp_path], check=True)
        assert main(["report", str(store.path), *form]) == 1
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    printed = capsys.readouterr()
    assert "cells" in printed.out
    assert "index.html" not in printed.out
    assert f"{store.report_path} cannot be written: Read-only file system\n  -> see `dmesg`: " in printed.err
    assert not form or json.loads(printed.out)["report"] is None


def test_run_names_the_nearest_option_for_one_that_pytest_does_not_know(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "run", f"--project={tmp_path}", "--profil=smoke", "--durations=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert '  --profil: (did you mean "--profile"?)' in done.stderr
    assert "--durations:" not in done.stderr


_INTERRUPTED_WHILE_IT_IMPORTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("harness.cli", "import harness; sys.exit(harness.main())"),
        ("_pytest.approx", PYTEST[-1]),
        ("harness.model.mode", PYTEST[-1]),
    ],
)
def test_ctrl_c_before_a_command_is_loaded_ends_it_with_one_line(module: str, start: str) -> None:
    begin = _INTERRUPTED_WHILE_IT_IMPORTS.format(module=module) + start
    command = [sys.executable, "-c", begin, *(["-p", "harness.plugin"] if "pytest" in start else ["report"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "virt-overhead: interrupted\n")
