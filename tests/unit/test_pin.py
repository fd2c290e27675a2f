"""A pinned command acts on the device or file that was checked, or does not start."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

import pytest

from harness.config.names import RunId
from harness.errors import HostError, SafetyError
from harness.lab.created import Entry
from harness.lab.guard import Writable, built_on
from harness.lab.guard.writable import created
from harness.lab.pin import BlockPin, Fenced, read_pins, run_pinned
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from tests.unit.loop_disks import RUNNER, detach, loop, require, run, sparse

MIB = 1 << 20
ZERO = ["dd", "if=/dev/zero", "bs=1M", "count=1", "conv=notrunc", "status=none"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    require("losetup")
    first, second = (sparse(tmp_path / name, 16 * MIB) for name in ("first.img", "second.img"))
    for file in (first, second):
        file.write_bytes(b"precious" * (2 * MIB))
    return first, second


def wiped(file: Path) -> bool:
    return file.read_bytes()[:MIB] == bytes(MIB)


def test_the_command_runs_while_the_device_is_the_same(files: tuple[Path, Path]) -> None:
    with loop(files[0]) as device:
        (pin,) = read_pins(RUNNER, [device])
        assert isinstance(pin, BlockPin)
        assert (pin.path, pin.size_bytes, pin.identity) == (device, 16 * MIB, str(files[0]))
        done = run_pinned(RUNNER, [pin], [*ZERO, f"of={pin.path}", "oflag=sync"], deadline=20)
    assert done.argv == (*ZERO, f"of={pin.path}", "oflag=sync")
    assert wiped(files[0])


def test_a_disk_that_was_swapped_into_the_same_place_is_not_written_to(files: tuple[Path, Path]) -> None:
    """The kernel gives a name and a number again: that is how a disk in the same slot looks."""
    first, second = files
    with loop(first) as device:
        (pin,) = read_pins(RUNNER, [device])
    run("losetup", device, str(second))
    try:
        with pytest.raises(SafetyError, match=rf"{device} was \(.*first.img\) and is \(.*second.img\) now"):
            run_pinned(RUNNER, [pin], [*ZERO, f"of={device}"], deadline=20)
    finally:
        detach(device)
    assert not wiped(second)


def test_the_same_file_attached_again_is_another_device(files: tuple[Path, Path]) -> None:
    """Nobody knows what happened to it in between."""
    with loop(files[0]) as device:
        (pin,) = read_pins(RUNNER, [device])
    run("losetup", device, str(files[0]))
    try:
        with pytest.raises(SafetyError, match="a command that writes was not started"):
            run_pinned(RUNNER, [pin], [*ZERO, f"of={device}"], deadline=20)
    finally:
        detach(device)
    assert not wiped(files[0])


def test_a_device_that_is_gone_is_named(files: tuple[Path, Path]) -> None:
    with loop(files[0]) as device:
        (pin,) = read_pins(RUNNER, [device])
    with pytest.raises(SafetyError, match=device):
        run_pinned(RUNNER, [pin], ["true"], deadline=20)


def test_another_file_at_the_same_path_is_not_written_to(files: tuple[Path, Path]) -> None:
    first, second = files
    (pin,) = read_pins(RUNNER, [str(first)])
    first.rename(first.parent / "moved.img")
    second.rename(first)
    with pytest.raises(SafetyError, match=f"{first} was "):
        run_pinned(RUNNER, [pin], [*ZERO, f"of={first}"], deadline=20)
    assert not wiped(first)


def test_one_pin_of_several_that_does_not_hold_stops_the_command(files: tuple[Path, Path], tmp_path: Path) -> None:
    many = [sparse(tmp_path / f"{number}.img", MIB) for number in range(12)]
    pins = read_pins(RUNNER, [str(file) for file in (*many, *files)])
    run_pinned(RUNNER, pins, ["true"], deadline=20)
    files[1].unlink()
    with pytest.raises(SafetyError, match=f"{files[1]} is gone"):
        run_pinned(RUNNER, pins, [*ZERO, f"of={files[0]}"], deadline=20)
    assert not wiped(files[0])


def test_the_commands_own_failure_is_its_own(files: tuple[Path, Path]) -> None:
    pins = read_pins(RUNNER, [str(files[0])])
    with pytest.raises(HostError, match="`false` ended with status 1"):
        run_pinned(RUNNER, pins, ["false"], deadline=20)
    assert run_pinned(RUNNER, pins, ["sh", "-c", "exit 7"], deadline=20, check=False).status == 7


def test_the_device_is_held_open_while_the_command_runs_but_not_by_the_command(files: tuple[Path, Path]) -> None:
    with loop(files[0]) as device:
        (pin,) = read_pins(RUNNER, [device])
        script = 'for at in /proc/$PPID/fd/* -- /proc/$$/fd/*; do readlink "$at" || echo "$at"; done'
        shell, _, command = run_pinned(RUNNER, [pin], ["sh", "-c", script], deadline=20).stdout.partition("--")
    assert device in shell.split()
    assert device not in command.split()


class LeasedRunner(LocalRunner):
    """A runner whose lease is a file that is there."""

    def __init__(self, file: Path) -> None:
        super().__init__("host here")
        self.fence = f"[ -e '{file}' ]"


def test_a_command_is_not_started_once_the_lease_is_lost(files: tuple[Path, Path], tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    runner = LeasedRunner(held)
    assert isinstance(runner, Fenced)
    pins = read_pins(runner, [str(files[0])])
    assert run_pinned(runner, pins, ["true"], deadline=20).status == 0
    held.unlink()
    with pytest.raises(SafetyError, match="this run has lost its lease of the host"):
        run_pinned(runner, pins, [*ZERO, f"of={files[0]}"], deadline=20)
    assert not wiped(files[0])


def test_what_is_neither_a_device_nor_a_file_cannot_be_pinned(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/null")):
        with pytest.raises(HostError):
            read_pins(RUNNER, [str(path)])


def test_a_completed_command_is_shown_as_requested(tmp_path: Path) -> None:
    file = sparse(tmp_path / "file", 1)
    done: Completed = run_pinned(RUNNER, read_pins(RUNNER, [str(file)]), ["echo", "done"], deadline=20)
    assert (done.command, done.stdout) == ("echo done", "done\n")


@pytest.fixture
def numbered(tmp_path: Path) -> Iterator[Numbered]:
    """A disk of two partitions, whose second one can get the number of another disk's partition."""
    require("sfdisk", "partx", "blkid")
    files = [sparse(tmp_path / name, 16 * MIB) for name in ("disk.img", "other.img")]
    with loop(files[0]) as device, loop(files[1]) as other:
        found = Numbered(device, other)
        found.divide(device, found.partuuids)
        found.add(device)
        if not Path(found.partition).exists():
            pytest.skip("this kernel makes no partitions of loop devices")
        yield found


@dataclass
class Numbered:
    """`device` has a partition for each of `partuuids`; `other` is there to take the number of the second one."""

    device: str
    other: str
    partuuids: tuple[str, str] = field(default_factory=lambda: (str(uuid.uuid4()), str(uuid.uuid4())))

    @property
    def partition(self) -> str:
        return f"{self.device}p2"

    @property
    def number(self) -> str:
        return Path(f"/sys/class/block/{Path(self.partition).name}/dev").read_text(encoding="utf-8").strip()

    def divide(self, device: str, partuuids: Sequence[str], second: str = "4MiB") -> None:
        sizes = ("4MiB", second)
        lines = [f"size={size}, uuid={partuuid}" for size, partuuid in zip(sizes, partuuids, strict=True)]
        self.write_table(device, lines)

    def write_table(self, device: str, lines: Sequence[str]) -> None:
        flags = ("--quiet", "--no-reread", "--no-tell-kernel", "--force")
        run("sfdisk", *flags, device, text="\n".join(["label: gpt", *lines, ""]))

    def add(self, device: str) -> None:
        run("sh", "-c", 'partx --add "$1" 2>/dev/null || partx --update "$1"', "sh", device)

    def renumber(self) -> None:
        """Drop the partition and add it again, as the kernel does when it reads the table; with another number.

        Partitions of the other disk take the free numbers meanwhile. The kernel gives a number back a moment after the
        partition has gone, perhaps too late for them: then once more.
        """
        before = self.number
        self.write_table(self.other, ["size=1MiB"] * 12)
        for _ in range(20):
            run("partx", "--delete", "--nr", "2", self.device)
            sleep(0.05)
            self.add(self.other)
            run("partx", "--add", "--nr", "2", self.device)
            if self.number != before:
                return
            run("partx", "--delete", self.other)
        pytest.fail(f"the partition is {before} again and again")

    def writable(self) -> Writable:
        """The permission for the second partition, as a run has it."""
        disk = Entry("", RunId("20260101-000000-abcd"), "", {"disks": ["S1"]})
        return built_on(created(RUNNER, disk, [self.device]), [self.partition], [self.partuuids[1]])[0]


def test_a_partition_with_a_new_number_is_the_same_partition(numbered: Numbered) -> None:
    permission = numbered.writable()
    numbered.renumber()
    permission.run([*ZERO, f"of={numbered.partition}", "oflag=sync"], deadline=20)
    assert isinstance(permission.pin, BlockPin)
    assert permission.pin.number == numbered.number


def test_a_partition_with_a_new_number_and_another_uuid_is_not_written_to(numbered: Numbered) -> None:
    permission = numbered.writable()
    run(
        "sfdisk",
        "--quiet",
        "--no-reread",
        "--no-tell-kernel",
        "--force",
        "--part-uuid",
        numbered.device,
        "2",
        str(uuid.uuid4()),
    )
    numbered.renumber()
    with pytest.raises(SafetyError, match=f"{numbered.partition} was "):
        permission.run([*ZERO, f"of={numbered.partition}"], deadline=20)


def test_a_partition_with_a_new_number_and_another_size_is_not_written_to(numbered: Numbered) -> None:
    permission = numbered.writable()
    numbered.divide(numbered.device, numbered.partuuids, second="3MiB")
    numbered.renumber()
    with pytest.raises(SafetyError, match=f"{numbered.partition} was "):
        permission.run([*ZERO, f"of={numbered.partition}"], deadline=20)
