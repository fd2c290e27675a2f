"""The lab host as a process: found by what runs, not by what was written down, and ended with all its kin."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.errors import HostError, LabUnavailable
from harness.events import Event, Events
from harness.features.embedded.disks import EMULATED
from harness.features.embedded.lab_host import LabMachine, LabMachineState, boot
from harness.image import Cache, EmulatorImage, GuestImage, Image, ImageSet, LabImage, choose_cache
from harness.image.build import load_recipes
from harness.image.keys import ensure_key
from harness.image.manifest import Manifest
from harness.lab.facts import Acceleration

IGNORE_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


class Processes:
    """Processes of a test, ended with it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, before: str = "") -> int:
        """A process that sleeps, with these arguments on its command line; it runs when this returns."""
        code = f"{before}print('up', flush=True); import time; time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process.pid

    def runs(self, pid: int) -> bool:
        return self._process(pid).poll() is None

    def end_of(self, pid: int) -> int:
        """The exit status of the process. A process that ends has no command line a moment before it has a status."""
        return self._process(pid).wait(timeout=600)

    def _process(self, pid: int) -> subprocess.Popen[str]:
        return next(process for process in self._started if process.pid == pid)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def state(tmp_path: Path) -> LabMachineState:
    (tmp_path / "lab").mkdir()
    return LabMachineState(tmp_path / "lab")


def lab_host(processes: Processes, state: LabMachineState, *, before: str = "") -> int:
    return processes.start("-name", "virt-overhead-lab", "-pidfile", str(state.pidfile), before=before)


def write_record(state: LabMachineState, pid: int, made_of: tuple[str, ...] = ("lab1",)) -> LabMachine:
    machine = LabMachine(pid, 20022, "/key", "ssh-ed25519 AAAA", "tcg", "no KVM here", made_of, 0.0)
    state.record.write_text(json.dumps(asdict(machine) | {"made_of": list(machine.made_of)}))
    return machine


def test_a_running_lab_host_is_found_with_its_record(state: LabMachineState, processes: Processes) -> None:
    known = write_record(state, lab_host(processes, state))
    running = state.running()
    assert running is not None
    assert (running.pid, running.port, running.why) == (known.pid, 20022, "no KVM here")


def test_a_lab_host_that_is_kept_is_so_for_the_next_process(state: LabMachineState, processes: Processes) -> None:
    known = write_record(state, lab_host(processes, state))
    assert not known.kept
    kept = state.keep(known)
    assert kept == replace(known, kept=True)
    assert LabMachineState(state.directory).running() == kept


def test_a_run_waits_for_the_run_that_uses_the_lab_host(state: LabMachineState) -> None:
    told: list[Event] = []
    events = Events(told.append)
    order = []

    def second() -> None:
        with LabMachineState(state.directory).used(events, seconds=60):
            order.append("second")

    waiting = threading.Thread(target=second)
    with state.used(events, seconds=60):
        waiting.start()
        with pytest.raises(LabUnavailable, match="another run uses the embedded lab"):
            LabMachineState(state.directory).used(events).__enter__()
        while not told:
            assert waiting.is_alive()
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]
    assert len(told) == 1
    assert "waiting for the end of another run" in str(told[0])


def test_without_a_start_no_lab_host_runs(state: LabMachineState) -> None:
    assert state.running() is None
    assert state.processes() == []
    assert not state.stop()


def test_a_record_whose_pid_belongs_to_another_program_is_not_a_lab_host(
    state: LabMachineState, processes: Processes
) -> None:
    other = processes.start("-pidfile", "/run/another.pid")
    write_record(state, other)
    assert state.running() is None
    assert not state.stop()
    assert processes.runs(other)
    assert not state.record.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "colour": "red"}'])
def test_a_record_that_cannot_be_read_is_not_a_lab_host(state: LabMachineState, text: str) -> None:
    state.record.write_text(text)
    assert state.running() is None


def test_stop_ends_the_lab_host_with_sigterm_and_removes_its_record(
    state: LabMachineState, processes: Processes
) -> None:
    pid = lab_host(processes, state)
    write_record(state, pid)
    assert state.stop()
    assert processes.end_of(pid) == -signal.SIGTERM
    assert not state.record.exists()
    assert state.running() is None


def test_the_data_of_emulated_disks_is_removed_with_the_lab_host(state: LabMachineState, processes: Processes) -> None:
    lab_host(processes, state)
    images = [state.directory / f"{disk.name}.img" for disk in EMULATED]
    for image in images:
        image.write_bytes(b"measured")
    assert state.stop()
    assert not any(image.exists() for image in images)


def test_stop_ends_what_a_crash_left_without_a_record(state: LabMachineState, processes: Processes) -> None:
    pids = [lab_host(processes, state) for _ in range(2)]
    assert state.running() is None
    assert sorted(state.processes()) == sorted(pids)
    assert state.stop()
    assert [processes.end_of(pid) for pid in pids] == [-signal.SIGTERM, -signal.SIGTERM]


def test_stop_ends_a_lab_host_that_hangs(
    state: LabMachineState, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.features.embedded.lab_host.STOP_SECONDS", 0.3)
    pid = lab_host(processes, state, before=IGNORE_TERM)
    assert state.stop()
    assert processes.end_of(pid) == -signal.SIGKILL


def test_the_lab_host_of_another_directory_is_left_alone(
    state: LabMachineState, processes: Processes, tmp_path: Path
) -> None:
    other = lab_host(processes, LabMachineState(tmp_path / "other"))
    assert not state.stop()
    assert processes.runs(other)


def test_a_program_that_mentions_the_directory_is_left_alone(state: LabMachineState, processes: Processes) -> None:
    editor = processes.start(f"{state.pidfile}.swp", f"--log={state.console}")
    assert not state.stop()
    assert processes.runs(editor)


def test_two_processes_do_not_start_it_at_once(state: LabMachineState) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with state.locked(seconds=5):
            held.set()
            done.wait(300)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(300)
    try:
        said = r"another process has been starting or stopping the embedded lab for 100 ms"
        with pytest.raises(LabUnavailable, match=said) as error, state.locked(seconds=0.1):
            pass
    finally:
        done.set()
        holder.join()
    assert error.value.hint is not None
    assert "virt-overhead lab down" in error.value.hint
    with state.locked(seconds=0.1):
        pass


def images(directory: Path, *, digest: str = "1") -> ImageSet:
    """Images whose files are missing."""
    manifest = Manifest(
        version=1, name="x", recipe_digest="x", suite="trixie", built_at="", build_s=1.0, fio_version="fio-3.39",
        kernel="6.12", host_key="ssh-ed25519 AAAA", packages={}, inputs={}, files={},
    )  # fmt: skip
    return ImageSet(
        Image("fio", "fio1", directory, manifest),
        GuestImage("guest", f"guest{digest}", directory, manifest),
        EmulatorImage("emulator", "emulator1", directory, manifest),
        LabImage("lab", f"lab{digest}", directory, manifest),
        directory / "key",
    )


def test_a_machine_fits_only_the_images_it_was_started_from(
    state: LabMachineState, processes: Processes, tmp_path: Path
) -> None:
    write_record(state, lab_host(processes, state), state.made_of(images(tmp_path), "tcg"))
    machine = state.running()
    assert machine is not None
    assert state.fits(machine, images(tmp_path))
    assert not state.fits(machine, images(tmp_path, digest="2"))


def test_a_lab_host_with_other_hardware_or_disks_does_not_fit(
    tmp_path: Path, state: LabMachineState, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = write_record(state, pid=1, made_of=state.made_of(images(tmp_path), "tcg"))
    assert state.fits(machine, images(tmp_path))
    monkeypatch.setattr("harness.features.embedded.lab_host.make_creation_script", lambda: "other disks")
    assert not state.fits(machine, images(tmp_path))


def test_an_error_of_qemu_is_reported_and_leaves_nothing(state: LabMachineState, tmp_path: Path) -> None:
    emulator = next(recipe for recipe in load_recipes(ensure_key().public) if recipe.name == "emulator")
    found = Cache(choose_cache()).find(emulator, {})
    if not isinstance(found, EmulatorImage):
        pytest.skip("no emulator here: virt-overhead images builds it")
    absent = replace(images(tmp_path / "absent"), emulator=found)
    with pytest.raises(LabUnavailable, match=r"the lab host did not start: (?s:.*)root\.img"):
        state.start(absent, "tcg", "no KVM here")
    assert state.processes() == []
    assert list(state.directory.iterdir()) == []


# It writes what a kernel says, and does not answer.
_EMULATOR = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in -pidfile) pidfile=$2 ;; file:*) console=${1#file:} ;; esac
    shift
done
PYTHON -c 'import time; time.sleep(600)' -pidfile "$pidfile" >/dev/null 2>&1 &
echo $! >"$pidfile"
echo 'SAID' >"$console"
echo started >>"${0%/*}/starts"
"""


@pytest.mark.parametrize(
    ("said", "starts"), [("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", 2), ("Linux version 6.12", 1)]
)
def test_a_lab_host_that_hangs_while_it_boots_is_started_again(
    state: LabMachineState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, starts: int
) -> None:
    monkeypatch.setattr("harness.features.embedded.lab_host.HANG_SECONDS", 0.5)
    monkeypatch.setattr("harness.features.embedded.lab_host.BOOT_SECONDS", 0.5)
    made = images(tmp_path)
    emulator_image = EmulatorImage("emulator", "emulator1", tmp_path, made.lab.manifest)
    hanging = replace(made, emulator=emulator_image, key=ensure_key(tmp_path).private)
    emulator = tmp_path / "ld-linux-x86-64.so.2"
    emulator.write_text(_EMULATOR.replace("PYTHON", sys.executable).replace("SAID", said))
    emulator.chmod(0o755)
    with pytest.raises(HostError, match="no SSH login within"):
        boot(state, hanging, Acceleration("tcg", "no KVM here"))
    assert (tmp_path / "starts").read_text() == "started\n" * starts
    assert state.stop()
