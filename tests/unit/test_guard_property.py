"""For random contents and states of a disk the guard refuses, or the disk was blank; nothing else happens."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.errors import SafetyError
from harness.lab.guard import require_writable
from harness.lab.inventory import DiskByFile
from tests.unit.loop_disks import RUNNER, detach, loop, require, run, sparse

MIB = 1 << 20
SIZE = 24 * MIB
SEED = int(os.environ.get("VIRT_OVERHEAD_SEED", "20261122"))
TRIES = 15


def write_contents(file: Path, chance: random.Random) -> None:
    """Nothing, zeros, or some stretches of bytes anywhere, from one byte to several MiB; now and then a file system."""
    if chance.random() < 0.15:
        run(*chance.choice([("mkfs.ext4", "-q", "-F"), ("mkswap", "-q"), ("mkfs.minix",)]), str(file))
    with file.open("r+b") as disk:
        for _ in range(chance.choice([0, 0, 0, 1, 1, 2, 5])):
            length = chance.choice([1, 16, 512, 4096, 65536, 3 * MIB])
            disk.seek(chance.choice([0, SIZE - length, chance.randrange(SIZE - length)]))
            disk.write(chance.choice([bytes(length), chance.randbytes(length), b"x" * length]))


@contextmanager
def state(device: str, chance: random.Random) -> Iterator[bool]:
    """Some state of the device; whether nobody uses it."""
    with ExitStack() as stack:
        kind = chance.choice(["free", "free", "free", "open", "read-only", "looped"])
        if kind == "open":
            stack.callback(os.close, os.open(device, chance.choice([os.O_RDONLY, os.O_RDWR])))
        elif kind == "read-only":
            run("blockdev", "--setro", device)
            stack.callback(run, "blockdev", "--setrw", device)
        elif kind == "looped":
            other = run("losetup", "--find", "--show", device).strip()
            stack.callback(detach, other)
        yield kind == "free"


@pytest.mark.parametrize("number", range(2))
def test_a_disk_is_refused_or_was_blank_and_never_changed(tmp_path: Path, number: int) -> None:
    require("mkfs.ext4", "mkswap", "blockdev")
    chance = random.Random(SEED + number)
    outcomes = set()
    for attempt in range(TRIES):
        file = sparse(tmp_path / f"{attempt}.img", SIZE)
        write_contents(file, chance)
        before = file.read_bytes()
        spec = DiskByFile("loop", file, SIZE, destroy=chance.random() < 0.9)
        with loop(file) as device, state(device, chance) as free:
            try:
                accepted = require_writable(RUNNER, spec, device).path == device
            except SafetyError:
                accepted = False
        should = spec.destroy and free and not any(before)
        assert accepted == should, f"seed {SEED + number}, try {attempt}"
        assert file.read_bytes() == before
        outcomes.add(accepted)
        file.unlink()
    assert outcomes == {True, False}, "the seed tries one outcome only"
