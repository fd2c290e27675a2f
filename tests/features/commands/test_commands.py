"""Commands of the user: how a figure is read, what is refused, and what a run leaves behind."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.commands.request import (
    MOST_OUTPUT,
    CommandFailed,
    CommandRecord,
    OwnFigure,
    PlannedCommand,
    find_obstacle,
    read_run,
    require_same_unit,
)
from harness.files import read_script, shipped
from harness.lab.transport.local import LocalRunner
from harness.scenario.load import load_scenario
from harness.scenario.plan import plan_for
from harness.signals import wait_until
from tests.unit.loop_disks import require, sparse

_SCRIPT = read_script("harness.features.commands", "run_command.sh")
_START = ("sh", "-c", _SCRIPT, "sh")


@pytest.mark.parametrize(
    ("figure", "output", "value"),
    [
        (OwnFigure(), "anything", 2.5),
        (OwnFigure(regex=r"tps = ([0-9.]+)"), "tps = 10.5\nlatency 3\ntps = 812.25 (without)\n", 812.25),
        (OwnFigure(json="jobs.0.read.iops"), 'fio: note\n{"jobs": [{"read": {"iops": 1234.5}}]}\n', 1234.5),
        (OwnFigure(json="sync/percentile/99.000000"), 'note: [x]\n{"sync": {"percentile": {"99.000000": 7}}}\n', 7.0),
        (OwnFigure(regex=r"^([0-9.e+]+)$"), "1e3\n", 1000.0),
        (OwnFigure(json="tps"), 'progress: {5 %}\n  {"tps": 3}\n', 3.0),
        (OwnFigure(json="tps"), '{"tps": 1}\n{"tps": 2}\n{"end": [{"tps": 9}]}\n', 2.0),
        (OwnFigure(json="tps"), '[0] begins\nresult: {"tps": 4}\n', 4.0),
        (OwnFigure(json="0.tps"), '[{"tps": 5}]\n', 5.0),
        (OwnFigure(regex=r"([0-9.]+) MB/s"), "268435456 bytes copied, 0.5 s, 812.25 MB/s\n", 812.25),
        (OwnFigure(regex=r"^iops,([0-9]+),"), "iops,1234,567\n", 1234.0),
        (OwnFigure(regex=r"IOPS=([0-9]+)"), "IOPS=1234, BW=5MiB/s\n", 1234.0),
        (OwnFigure(regex=r"after ([0-9.]+)"), "done after 2.5, ok\n", 2.5),
        (OwnFigure(regex=r"([0-9.]+)ms"), "p99-12.5ms\n", 12.5),
    ],
)
def test_a_figure_is_read(figure: OwnFigure, output: str, value: float) -> None:
    assert read_run(f"0 2.50\n{output}", figure, "it", 30).figure == value


def test_what_was_counted_beside_a_run_is_read() -> None:
    run = read_run("0 2.50 4125.83 4 12 1048576 4096 8192\n", OwnFigure(), "it", 30)
    assert (run.loops, run.cpus, run.written, run.fetched, run.read) == (4125.83, 4, 1 << 20, 4096, 8192)
    assert read_run("0 2.50 - 4 0\n", OwnFigure(), "it", 30).loops is None


def test_an_expression_whose_search_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[OwnFigure.__module__], "_SEARCH_SECONDS", 2)
    endless = OwnFigure(regex=r"(?:[a-z]+ ?)+=([0-9]+)")
    with pytest.raises(CommandFailed, match="takes more than 2 s to search the output: avoid a repetition within a"):
        read_run(f"0 1.00\n{'no figure in this line ' * 20}\n", endless, "it", 30)


@pytest.mark.parametrize(
    ("figure", "printed", "error"),
    [
        (OwnFigure(regex="x=(.*)"), "0 1.00\nx=nan\n", "'nan' is not a number above 0"),
        (OwnFigure(regex="x=(.*)"), "0 1.00\nx=-3\n", "'-3' is not a number above 0"),
        (OwnFigure(regex="x=(.*)"), "0 1.00\nx=many\n", "'many' is not a number"),
        (OwnFigure(regex="x=(.*)"), "0 1.00\nx=1,234.5\n", "'1,234.5' is not a number"),
        (OwnFigure(regex="x=(y)?"), "0 1.00\nx=\n", "'None' is not a number"),
        (OwnFigure(regex="([0-9.]+) MB/s"), "0 1.00\n1,234.5 MB/s\n", "'234.5' is only a part of '1,234.5'"),
        (OwnFigure(regex="([0-9.]+) GB/s"), "0 1.00\n1,2 GB/s\n", "'2' is only a part of '1,2'"),
        (OwnFigure(regex="([0-9]+) MB/s"), "0 1.00\n812.25 MB/s\n", "'25' is only a part of '812.25'"),
        (OwnFigure(regex="tps = ([0-9]+)"), "0 1.00\ntps = 0.85\n", "'0' is only a part of '0.85'"),
        (OwnFigure(regex="tps = ([0-9.]+)"), "0 1.00\ntps = 1.5e+06\n", "'1.5' is only a part of '1.5e\\+06'"),
        (OwnFigure(regex="tps = ([0-9.]+?)"), "0 1.00\ntps = 15\n", "'1' is only a part of '15'"),
        (OwnFigure(regex="([0-9.]+) ms"), "0 1.00\nx: -5 ms\n", "'5' is only a part of '-5'"),
        (OwnFigure(regex="x=(.*)"), f"0 1.00 - 4 {MOST_OUTPUT + 1} 0\nx=1\n", "printed more than 256 KiB"),
        (OwnFigure(regex="x=(.*)"), "0 1.00\nnothing\n", "nothing in the output matches .* it printed: nothing"),
        (OwnFigure(json="a.b"), '0 1.00\n{"a": 1}\n', "has no 'a.b'"),
        (OwnFigure(json="a"), "0 1.00\n{{{{\n", "has no JSON"),
        (OwnFigure(json="a"), '0 1.00\n{"a": true}\n', "'True' is not a number"),
        (OwnFigure(json="a"), f'0 1.00\n{{"a": 1{"0" * 400}}}\n', "is not a number"),
        (OwnFigure(json="a"), f"0 1.00\n{'[' * 100_000}\n", "has no JSON"),
        (OwnFigure(), "3 1.00\nfirst\ncannot open database\n", "exit status 3: first | cannot open database"),
        (OwnFigure(), "137 30.01\nworking\n", "did not end within 30 s and was ended: working"),
        (OwnFigure(), "125 0\next4 cannot be mounted: wrong fs type\n", "it was not run: ext4 cannot be mounted"),
        (OwnFigure(), "unshare: Operation not permitted\n", "could not be started: unshare"),
        (OwnFigure(), "", "could not be started: nothing"),
    ],
)
def test_a_run_without_a_figure_says_why(figure: OwnFigure, printed: str, error: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        read_run(printed, figure, "pgbench in the guest", 30)
    assert failed.value.message.startswith("pgbench in the guest: ")
    assert re.search(error.replace(" | ", r" \| ").replace("'", "[\"']"), failed.value.message)


def test_runs_whose_numbers_have_different_units_are_not_compared() -> None:
    figure = OwnFigure(regex=r"copied.*, ([0-9.]+)", unit="MB/s", better="higher")
    slow, fast, faster = (
        read_run(f"0 1.00\n1 GB copied, 1 s, {rate}\n", figure, "dd", 30)
        for rate in ("812 MB/s", "1.2 GB/s", "1.3 GB/s")
    )
    require_same_unit(faster, [fast], "dd")
    with pytest.raises(CommandFailed, match=r"dd: after the number is .GB/s., and .MB/s. in an earlier run"):
        require_same_unit(fast, [slow], "dd")
    thousands = OwnFigure(regex="IOPS=([0-9.]+)")
    few, many = (read_run(f"0 1.00\nIOPS={ios}, BW=1\n", thousands, "fio", 30) for ios in ("9876", "12.5k"))
    with pytest.raises(CommandFailed, match="different units"):
        require_same_unit(many, [few], "fio")


def test_the_loss_is_by_pairs_of_runs() -> None:
    record = CommandRecord(
        *("g-command-c-lvm", "c", "s", "h", "d", "lvm", "true", "ext4", "tps", "higher"),
        on_host=(100.0, 200.0, 400.0, 90.0),
        in_guest=(50.0, 100.0, 200.0),
        raw=(),
        problem="c on the host: exit status 1",
    )
    assert len(record.pairs) == 3
    assert record.loss is not None
    assert record.loss.point == pytest.approx(0.5)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A file with a new file system."""
    require("unshare", "mkfs.ext4")
    path = sparse(tmp_path / "volume", 32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True)
    return path


@pytest.fixture(scope="session")
def syncload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled here. The image has it from another compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = tmp_path_factory.mktemp("syncload") / "syncload"
    options = ("-Os", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Wall", "-Wextra", "-Werror")
    source = shipped("images") / "fio" / "syncload.c"
    subprocess.run(["gcc", *options, "-fno-tree-loop-distribute-patterns", "-o", program, source], check=True)
    return program


def encode(program: Path) -> str:
    """As a run gets it."""
    return base64.b64encode(program.read_bytes()).decode()


def list_arguments(
    volume: Path,
    command: str,
    *,
    device: str | None = None,
    side: str = "host",
    seconds: int = 20,
    mark: str = "VOH_TEST=1",
    program: str = "",
    control: int = 0,
) -> list[str]:
    """What run_command.sh gets. `device`: how it opens the volume."""
    where = [mark, str(volume.parent / "point"), str(seconds + 6), device or str(volume), "ext4", ""]
    return [*where, side, str(seconds), str(MOST_OUTPUT), program, str(control), command]


def run(
    volume: Path, command: str, *, seconds: int = 20, mark: str = "VOH_TEST=1", program: str = "", control: int = 0
) -> str:
    arguments = list_arguments(volume, command, seconds=seconds, mark=mark, program=program, control=control)
    done = subprocess.run([*_START, *arguments], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def left(volume: Path, what: str) -> str:
    """Processes with these words on the machine, mounts and loop devices of the volume."""
    processes = subprocess.run(["pgrep", "-f", what], capture_output=True, text=True, check=False).stdout
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(volume.parent) in line]
    return processes + list_loops(volume) + "".join(mounts)


def test_runs_use_the_same_file_system_and_leave_nothing(volume: Path) -> None:
    assert read_run(run(volume, "echo 42 >kept; cat kept"), OwnFigure(regex="([0-9]+)"), "it", 20).figure == 42
    assert read_run(run(volume, "cat kept"), OwnFigure(regex="([0-9]+)"), "it", 20).figure == 42
    assert left(volume, "no such process") == ""


@pytest.mark.parametrize("start", ["sleep {}", "setsid sleep {}", "(trap '' HUP TERM INT; sleep {})"])
def test_what_it_starts_ends_with_it(volume: Path, start: str) -> None:
    sleeping = start.format(7000 + len(start))
    command = f"{sleeping} & echo 5"
    assert read_run(run(volume, command), OwnFigure(regex="([0-9]+)"), "it", 20).figure == 5
    assert left(volume, f"sleep {7000 + len(start)}") == ""


@pytest.mark.parametrize("what", ["fsyncs 1", "transactions 1", "cpu 1"])
def test_syncload_prints_a_rate_and_removes_its_files(volume: Path, syncload: Path, what: str) -> None:
    printed = run(volume, f"syncload {what}; find . -type f | wc -l", program=encode(syncload))
    figure = OwnFigure(regex=r"^[A-Z]+/SECOND: ([0-9.]+)$", unit="1/s", better="higher")
    assert read_run(printed, figure, "it", 20).figure > 1
    assert printed.splitlines()[-1] == "0"


def test_syncload_says_what_failed(syncload: Path, tmp_path: Path) -> None:
    done = subprocess.run([syncload, "fsyncs"], cwd="/proc", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "mkdir failed with errno 2\n")
    assert subprocess.run([syncload, "x"], cwd=tmp_path, capture_output=True, check=False).returncode == 2


def list_calls(argv: Sequence[str | Path], directory: Path, *more: str) -> list[str]:
    """The calls that write and sync, and `more` of them, in their order, without the numbers of descriptors."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    calls = "trace=" + ",".join(("open,openat,write,pwrite64,fsync,fdatasync,unlink", *more))
    names = {"openat": "open", "newfstatat": "fstat", "pwrite64": "write"}
    traced = ["strace", "-f", "-o", directory / "trace", "-e", calls, *argv]
    subprocess.run(traced, cwd=directory, check=True, capture_output=True, timeout=120)
    lines = []
    for line in (directory / "trace").read_text().splitlines():
        called = re.match(r"\d+ +(\w+)\((.*)\) += (-?\d+)", line)
        if called is not None:
            size = called[3] if "write" in called[1] else ""
            lines.append(f"{names.get(called[1], called[1])} {size}".strip())
    return lines


def test_fsyncs_makes_the_calls_of_pveperf(syncload: Path, tmp_path: Path) -> None:
    if shutil.which("perl") is None:
        pytest.skip("needs perl")
    asked = ("ioctl", "lseek", "fstat", "newfstatat")
    perl = list_calls(["perl", Path(__file__).parent / "count_fsyncs.pl", "0"], tmp_path, *asked)
    loop = ["open", "ioctl", "lseek", "fstat", "fsync", "write 4001"]
    assert loop in [perl[at : at + 6] for at in range(len(perl))]
    assert list_calls([syncload, "fsyncs", "0"], tmp_path, *asked)[:6] == loop


def test_transactions_makes_the_calls_of_sqlite(syncload: Path, tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("needs sqlite3")
    statements = "CREATE TABLE t(v); INSERT INTO t VALUES(1); INSERT INTO t VALUES(2);"
    sqlite = list_calls(["sqlite3", "made", statements], tmp_path)
    ours = list_calls([syncload, "transactions", "0"], tmp_path)
    ends = [at for at, call in enumerate(sqlite) if call == "unlink"]
    transaction = sqlite[ends[-2] + 1 : ends[-1] + 1]
    begins = ours.index("fdatasync") + 1
    assert ours[begins : begins + len(transaction)] == transaction
    assert transaction.count("fdatasync") == 4


def test_a_guest_gets_script_program_and_command_as_input(volume: Path, syncload: Path) -> None:
    argv = ["sh", "-s", "--", *list_arguments(volume, "", side="guest", mark=f"VOH_TEST={volume}")]
    command = f"syncload cpu 1; cat; echo $SYNCLOAD$COMMAND; pwd # '{'x' * 16_000}'"
    stdin = f"export SYNCLOAD={encode(syncload)} COMMAND={shlex.quote(command)}\n{_SCRIPT}"
    printed = LocalRunner("here").run(argv, stdin=stdin, deadline=60).stdout
    assert read_run(printed, OwnFigure(regex="LOOPS/SECOND: ([0-9.]+)"), "it", 20).figure > 0
    assert printed.splitlines()[-2:] == ["", str(volume.parent / "point" / "volume" / "guest")]


def test_the_cpu_alone_runs_after_the_command(volume: Path, syncload: Path) -> None:
    run_of_it = read_run(
        run(volume, "echo 1", program=encode(syncload), control=1), OwnFigure(regex="([0-9]+)"), "it", 20
    )
    assert run_of_it.loops is not None
    assert run_of_it.loops > 1
    assert run_of_it.cpus == os.cpu_count()


def test_what_a_run_wrote_is_counted_and_more_than_declared_ends_it(volume: Path) -> None:
    printed = run(volume, "dd if=/dev/zero of=file bs=1M count=16 conv=fsync 2>/dev/null; sleep 0.05")
    written = read_run(printed, OwnFigure(), "it", 20).written
    assert written is not None
    assert 16 << 20 <= written < 24 << 20
    with pytest.raises(CommandFailed, match=r"it wrote 1[67].* MiB, and `writes` allows 4.* MiB"):
        read_run(printed, OwnFigure(), "it", 20, 4 << 20)


@pytest.mark.parametrize(
    ("reader", "passes"), [("cat file >/dev/null", 8), ("dd if=file of=/dev/null bs=1M iflag=direct 2>/dev/null", 1)]
)
def test_what_memory_served_is_told_from_what_the_volume_gave(volume: Path, reader: str, passes: int) -> None:
    run(volume, "dd if=/dev/urandom of=file bs=1M count=16 2>/dev/null")
    of_run = read_run(run(volume, f"for _ in 1 2 3 4 5 6 7 8; do {reader}; done"), OwnFigure(), "it", 20)
    assert of_run.read is not None
    assert of_run.fetched is not None
    assert 128 << 20 <= of_run.read < 136 << 20
    assert of_run.read / passes == pytest.approx(of_run.fetched, rel=0.1)


@pytest.mark.parametrize(
    ("on_host", "in_guest", "refused"),
    [
        # sysbench on a host with much memory and a guest with little: https://cylab.be/blog/349
        ((100 << 30, 1 << 30), (1 << 30, 1 << 30), "host"),
        ((1 << 30, 1 << 30), (100 << 30, 1 << 30), "guest"),
        # In a fixed time, the faster side reads the same data more often.
        ((100 << 30, 1 << 30), (50 << 30, 1 << 30), None),
        ((1 << 30, 1 << 30), (1 << 30, 900 << 20), None),
        # Programs and metadata only.
        ((8 << 20, 1 << 20), (8 << 20, 8 << 20), None),
    ],
)
def test_a_side_that_only_memory_served_is_refused(
    on_host: tuple[int, int], in_guest: tuple[int, int], refused: str | None
) -> None:
    record = CommandRecord(
        *("g-command-c-lvm", "c", "s", "h", "d", "lvm", "sysbench", "ext4", "MiB/s", "higher"),
        on_host=(4536.0, 4600.0),
        in_guest=(47.0, 48.0),
        raw=(),
        problem=None,
        cpu_on_host=(1.0, 1.0),
        cpu_in_guest=(1.0, 1.0),
        reads={"host": on_host, "guest": in_guest},
    )
    assert record.cached_side == refused
    for value in (record.loss, record.times, record.loss_beside_cpu):
        assert (value is None) == (refused is not None)
    assert (record.host_mean is None) == (refused == "host")
    assert (record.guest_mean is None) == (refused == "guest")


def test_a_command_gets_no_open_file_of_its_host(volume: Path) -> None:
    open_it = ["sh", "-c", 'exec 3<>"$1"; shift; exec "$@"', "sh", str(volume)]
    arguments = list_arguments(volume, "ls -l /proc/self/fd", device="/proc/self/fd/3")
    printed = LocalRunner("here").run([*open_it, *_START, *arguments], deadline=60).stdout
    assert printed.startswith("0 ")
    assert str(volume) + "\n" not in printed
    assert "/dev/loop" not in printed


def list_marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                processes.append(int(path.parent.name))
    return processes


def list_loops(volume: Path) -> str:
    """The loop devices of the volume."""
    return subprocess.run(["losetup", "-j", volume], capture_output=True, text=True, check=True).stdout


def test_a_killed_run_leaves_nothing(volume: Path) -> None:
    mark = f"VOH_TEST={volume}"
    argv = [*_START, *list_arguments(volume, "sleep 7175", seconds=60, mark=mark)]
    for _ in range(10):
        with subprocess.Popen(argv, start_new_session=True) as process:
            assert wait_until(lambda: list_loops(volume), deadline=60, every=0)
            while marked := list_marked(mark):
                for pid in marked:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait(timeout=60)
        # The kernel takes the namespace down a moment later.
        gone = wait_until(lambda: left(volume, "sleep 7175") == "", deadline=60, every=0.1)
        assert gone


def test_a_run_that_has_ended_leaves_no_process(volume: Path) -> None:
    mark = f"VOH_TEST={volume}"
    run(volume, "true", mark=mark, seconds=600)
    # What was killed exists for a moment longer on a busy machine. A process that is left sleeps for ten minutes.
    assert wait_until(lambda: list_marked(mark) == [], deadline=60, every=0.1)


def test_without_a_name_space_nothing_is_run(volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "unshare"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nshift 3\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    with pytest.raises(CommandFailed, match="it was not run: there are no namespaces"):
        read_run(run(volume, f"touch {tmp_path}/ran"), OwnFigure(), "it", 20)
    assert not (tmp_path / "ran").exists()


def test_endless_output_is_cut_and_ends(volume: Path) -> None:
    printed = run(volume, "yes 7172", seconds=3)
    assert len(printed) < MOST_OUTPUT + 100
    with pytest.raises(CommandFailed):
        read_run(printed, OwnFigure(), "it", 3)
    assert left(volume, "yes 7172") == ""


def test_a_figure_after_more_output_than_is_kept_is_missed_with_a_reason(volume: Path) -> None:
    command = f"sleep 0.05; echo tps = 1; head -c {MOST_OUTPUT} /dev/zero | tr '\\0' x; echo; echo tps = 2"
    printed = run(volume, command)
    with pytest.raises(CommandFailed, match="printed more than 256 KiB"):
        read_run(printed, OwnFigure(regex="^tps = ([0-9]+)"), "it", 20)
    assert read_run(printed, OwnFigure(), "it", 20).figure >= 0.01


def test_a_run_that_does_not_end_is_ended(volume: Path) -> None:
    with pytest.raises(CommandFailed, match="did not end within 2 s"):
        read_run(run(volume, "echo begun; sleep 7173", seconds=2), OwnFigure(), "it", 2)
    assert left(volume, "sleep 7173") == ""


@pytest.mark.parametrize("signal_name", ["STOP", "KILL"])
def test_a_command_cannot_stop_or_end_what_ends_it(volume: Path, signal_name: str) -> None:
    command = f"while :; do kill -{signal_name} -1; sleep 7176; done"
    with pytest.raises(CommandFailed, match=r"did not end within 2 s|exit status 137"):
        read_run(run(volume, command, seconds=2), OwnFigure(), "it", 2)
    assert left(volume, "sleep 7176") == ""


def test_output_that_is_no_text_is_read(volume: Path) -> None:
    runner = LocalRunner("here")
    command = r"printf '\377\000\033[2Jtps = 5\n'"
    printed = runner.run([*_START, *list_arguments(volume, command)], deadline=60).stdout
    assert read_run(printed, OwnFigure(regex="tps = ([0-9]+)"), "it", 20).figure == 5


def test_many_processes_end_with_it(volume: Path) -> None:
    command = "for i in $(seq 200); do sleep 7174 & done; echo 200"
    assert read_run(run(volume, command), OwnFigure(regex="([0-9]+)"), "it", 20).figure == 200
    assert left(volume, "sleep 7174") == ""


SCENARIO = """
title = "Where a command can run"
disk = "optane"
modes = ["host", "passthrough", "own", "raw-cached", "mounted"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[mode.own]
layout = { kind = "lvm" }
attach = {}
container = true

[mode.mounted]
layout = { kind = "lvm" }
attach = {}
filesystem = "ext4"

[workload.host]
command = "true"
on_host = true

[workload.guest]
command = "true"
"""


@pytest.fixture
def planned(tmp_path: Path) -> dict[tuple[str, str], PlannedCommand]:
    """The commands of the scenario by their name and mode."""
    path = tmp_path / "where.toml"
    path.write_text(SCENARIO)
    plan = plan_for(load_scenario(path), "smoke")
    commands = [follow_up for follow_up in plan.follow_ups if isinstance(follow_up, PlannedCommand)]
    return {(command.name, command.cell.mode.name): command for command in commands}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("command", '"a\\u0000b"', "allowed: text without NUL"),
        ("command", '" \\t"', "must not be blank"),
        ("command", f'"{"x" * 70_000}"', "allowed: at most 65536 characters"),
        ("prepare", '"a\\u0000b"', "allowed: text without NUL"),
        ("runs", "1000000000", "allowed: at most 10000"),
        ("mount_options", '"noatime,,"', "allowed: options of mount: `noatime,discard`"),
        ("figure.regex", "'(a{99999999999})'", "not a regular expression: the repetition number is too large"),
        ("figure.json", '"jobs..iops"', "allowed: keys and indexes with points or slashes between them"),
        ("figure.json", '""', "allowed: keys and indexes with points or slashes between them"),
        ("figure.unit", '"MB\\n/s"', "allowed: one line of printable characters"),
    ],
)
def test_a_key_that_no_run_could_use_is_refused_with_what_is_allowed(
    tmp_path: Path, key: str, value: str, said: str
) -> None:
    path = tmp_path / "where.toml"
    own = SCENARIO.partition("[workload.host]")[0] + f"[workload.odd]\n{key} = {value}\n"
    path.write_text(own if key == "command" else f'{own}command = "true"\n')
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert f"{path}: workload.odd.{key} = " in caught.value.message
    assert said in caught.value.message


def test_a_command_runs_in_guests_and_not_in_containers(planned: dict[tuple[str, str], PlannedCommand]) -> None:
    modes = ("passthrough", "own", "raw-cached", "mounted")
    assert set(planned) == {(name, mode) for name in ("host", "guest") for mode in modes}


@pytest.mark.parametrize(
    ("mode", "why"), [("passthrough", "the host has no volume of this mode for itself"), ("raw-cached", None)]
)
def test_what_keeps_the_host_from_taking_part_is_said(
    planned: dict[tuple[str, str], PlannedCommand], mode: str, why: str | None
) -> None:
    obstacle = find_obstacle(planned["host", mode], limited=False)
    assert obstacle is None if why is None else why in (obstacle or "")
    assert find_obstacle(planned["guest", mode], limited=False) is None


def test_a_file_system_that_a_guest_has_mounted_is_left_alone(
    planned: dict[tuple[str, str], PlannedCommand],
) -> None:
    for name in ("host", "guest"):
        assert "choose a mode without `filesystem`" in (find_obstacle(planned[name, "mounted"], limited=False) or "")


def test_with_a_cache_between_them_only_the_guest_runs(planned: dict[tuple[str, str], PlannedCommand]) -> None:
    assert planned["host", "raw-cached"].host is None
    assert planned["host", "own"].host is not None


def test_a_run_with_a_limit_of_bytes_runs_no_command(planned: dict[tuple[str, str], PlannedCommand]) -> None:
    assert find_obstacle(planned["host", "own"], limited=False) is None
    assert "this run has a limit" in (find_obstacle(planned["host", "own"], limited=True) or "")
