"""What a host is told to do for layers that this machine has no kernel for: arrays and ZFS."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import HostError
from harness.events import Event, Events, StepAdvanced
from harness.features.arrays import building
from harness.features.arrays.building import create_array
from harness.features.zfs.volumes import Datasets
from harness.lab.created import CreationLog
from harness.lab.guard.writable import OPEN
from harness.lab.pin import MOUNT_DIRECTORY
from harness.lab.transport.base import Completed
from harness.layout import BlockSource, Sources
from harness.layout.regions import Region
from harness.model.base import Md
from harness.model.layout import ZfsFile, Zvol
from tests.unit.granted import pretended

MIB = 1024**2
NAME = "voh-20260101-000000-abcd"


class Listening:
    """A host that writes down the commands it is given, and answers as `answer` says: of the words, to its script.

    Every device is there. What checks a pin, and what writes to the creation log, is not written down.
    """

    def __init__(self, answer: Callable[[Sequence[str], str], str] = lambda _words, _script: "") -> None:
        self.name = "host here"
        self.commands: list[str] = []
        self._answer = answer

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,  # noqa: ARG002
        stdin: str | bytes | None = None,
        check: bool = True,  # noqa: ARG002
    ) -> Completed:
        return Completed(tuple(argv), 0, self._said(list(argv), str(stdin or "")), "")

    def _said(self, argv: list[str], stdin: str) -> str:
        script = argv[2] if argv[:2] == ["sh", "-c"] else ""
        if "pins=$1 descriptor=3" in script:
            _, *argv = argv[4:]
            argv = argv[1 + 2 * int(argv[0]) :]
            if argv[:3] == ["sh", "-c", OPEN]:
                path, *words = argv[4:]
                argv = [word.replace("/proc/self/fd/3", path) for word in words]
        elif "neither a block device nor a file" in script:
            return "".join(f"{path}\tblock\t9:127\t5\t{64 * MIB // 512}\tid\n" for path in argv[4:])
        elif script.startswith("export LC_ALL=C PATH"):
            self.commands.append(f"remove {' '.join(argv[4:])}")
            return "removed\n"
        elif "$1" in script:
            return ""
        self.commands.append(" ".join(argv))
        return self._answer(argv, stdin)

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def creations(self) -> list[str]:
        """The commands that create an array, each with its own UUID left out."""
        created = [command for command in self.commands if command.startswith("mdadm --create")]
        return [re.sub(" --uuid=[0-9a-f:]{35} ", " ", command) for command in created]


class ArrayHost(Listening):
    """One whose arrays are `md127`, and in sync when they have been asked about `asked` times."""

    def __init__(self, asked: int = 1) -> None:
        super().__init__(self._say)
        self.waited = 0
        self._left = asked

    def _say(self, words: Sequence[str], script: str) -> str:  # noqa: ARG002 - as it is called
        if "resync_start" in script:
            self._left -= 1
            self.waited += 1
            return "synced\n" if self._left <= 0 else "4096 / 131072\n"
        return "/dev/md127\n" if "sync_speed_max" in script else ""


def log(host: Listening) -> CreationLog:
    return CreationLog(host, RunId(NAME.removeprefix("voh-")))


def regions(host: Listening, letters: str) -> list[Region]:
    return [
        Region("m0", pretended(f"/dev/sd{letter}1", host), MIB, 64 * MIB, f"partuuid-{letter}") for letter in letters
    ]


@pytest.mark.parametrize(
    ("base", "options"),
    [
        (Md(0, 2), "--level=0 --raid-devices=2 --chunk=512"),
        (Md(1, 2), "--level=1 --raid-devices=2 --bitmap=internal --assume-clean"),
        (Md(5, 3, chunk=64 * 1024), "--level=5 --raid-devices=3 --chunk=64 --bitmap=internal"),
        (Md(6, 4), "--level=6 --raid-devices=4 --chunk=512 --bitmap=internal"),
        (Md(10, 4), "--level=10 --raid-devices=4 --chunk=512 --bitmap=internal --assume-clean"),
    ],
    ids=str,
)
def test_each_level_has_its_options_and_only_parity_is_waited_for(base: Md, options: str) -> None:
    host = ArrayHost()
    letters = "abcd"[: base.disks]
    with create_array(log(host), base, f"{NAME}-m0", regions(host, letters), Events()) as device:
        assert device.path == "/dev/md127"
    members = " ".join(f"/dev/sd{letter}1" for letter in letters)
    assert host.creations() == [
        f"mdadm --create /dev/md/{NAME}-m0 --quiet --run --metadata=1.2 --homehost=any {options} {members}"
    ]
    assert (host.waited > 0) == (base.level in (5, 6))
    (removal,) = [command for command in host.commands if command.startswith("remove ")]
    assert removal.endswith(" partitions " + " ".join(f"partuuid-{letter}" for letter in letters))


def test_two_legs_are_two_arrays_and_a_stripe_over_them() -> None:
    host = ArrayHost()
    with create_array(log(host), Md(5, 6, legs=2), f"{NAME}-m0", regions(host, "abcdef"), Events()):
        pass
    first, second, stripe = host.creations()
    assert f"{NAME}-m0a " in first
    assert first.endswith("--level=5 --raid-devices=3 --chunk=512 --bitmap=internal /dev/sda1 /dev/sdb1 /dev/sdc1")
    assert f"{NAME}-m0b " in second
    assert second.endswith(" /dev/sdd1 /dev/sde1 /dev/sdf1")
    assert f"{NAME}-m0 " in stripe
    assert stripe.endswith("--level=0 --raid-devices=2 --chunk=512 /dev/md127 /dev/md127")
    # The stripe is dismantled before its legs.
    assert [command.partition(" ")[2].partition(" ")[2] for command in host.commands[-3:]] == [
        f"legs /dev/md/{NAME}-m0a /dev/md/{NAME}-m0b",
        "partitions partuuid-d partuuid-e partuuid-f",
        "partitions partuuid-a partuuid-b partuuid-c",
    ]


@pytest.mark.parametrize(
    ("base", "level"), [(Md(5, 3, state="degraded"), 5), (Md(1, 3, state="degraded"), 1)], ids=["parity", "mirror"]
)
def test_a_degraded_array_loses_its_last_member_when_it_is_in_sync(base: Md, level: int) -> None:
    host = ArrayHost()
    with create_array(log(host), base, f"{NAME}-m0", regions(host, "abc"), Events()):
        create, *between, last = host.commands
        assert f"--level={level} --raid-devices=3" in create
        assert last.endswith(" /dev/md127 /dev/sdc1")
        assert "mdadm --quiet" in last
        assert len(between) >= (2 if level == 5 else 1)
        assert all("--fail" not in each for each in between)
    assert host.commands[-1].endswith(" partitions partuuid-a partuuid-b partuuid-c")


def test_a_rebuilding_array_leaves_its_spare_out_until_a_recovery_begins() -> None:
    host = ArrayHost()
    base = Md(6, 4, state="rebuilding", spares=1)
    with create_array(log(host), base, f"{NAME}-m0", regions(host, "abcde"), Events()):
        (created,) = host.creations()
        assert created.endswith(
            " --raid-devices=4 --chunk=512 --bitmap=internal /dev/sda1 /dev/sdb1 /dev/sdc1 /dev/sdd1"
        )
        assert host.commands[-1].endswith(" /dev/md127 /dev/sdd1")
        assert not [command for command in host.commands if "/dev/sde1" in command]
    assert host.commands[-1].endswith(" partuuid-d partuuid-e"), "a killed run may leave a superblock on the spare"


def test_waiting_for_the_resync_reports_its_progress() -> None:
    seen: list[Event] = []
    host = ArrayHost(asked=3)
    with create_array(log(host), Md(6, 4), f"{NAME}-m0", regions(host, "abcd"), Events(seen.append)):
        pass
    assert [each.how_far for each in seen if isinstance(each, StepAdvanced)] == ["4096 / 131072 sectors"] * 2


def test_an_array_that_is_never_in_sync_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "PATIENCE", 0.0)
    monkeypatch.setattr(building, "SLOWEST_SYNC", 10**15)
    host = ArrayHost(asked=10**9)
    with (
        pytest.raises(
            HostError, match=r"array voh-.*-m0 of 4 disks and 64 MiB is not in sync .*: 4096 / 131072"
        ) as error,
        create_array(log(host), Md(6, 4), f"{NAME}-m0", regions(host, "abcd"), Events()),
    ):
        pass
    assert "/proc/mdstat" in str(error.value.hint)
    assert host.commands[-1].startswith("remove ")


def test_volumes_and_files_of_zfs_share_a_pool_that_no_boot_imports() -> None:
    host = Listening()
    layer = Datasets((("zvol", Zvol(16384)), ("file", ZfsFile(65536))))
    region = Region("zfs", pretended("/dev/sda3", host), MIB, layer.need.bytes(64 * MIB), "partuuid-a")
    pool = f"{NAME}-zfs"
    with layer.build(log(host), region, NAME, 64 * MIB) as sources:
        assert sources == {
            "zvol": Sources.same(BlockSource(f"/dev/zvol/{pool}/zvol", "block", 0, 64 * MIB)),
            "file": Sources.same(BlockSource(f"{MOUNT_DIRECTORY}/{pool}/file/disk.raw", "file", 0, 64 * MIB)),
        }
    create, zvol, dataset, file, _, destroy = host.commands
    assert create.startswith("zpool create -o ashift=12 -o cachefile=none ")
    assert create.endswith(f" -m {MOUNT_DIRECTORY}/{pool} {pool} /dev/sda3")
    assert zvol == f"zfs create -V {64 * MIB} -o volblocksize=16384 -o primarycache=metadata {pool}/zvol"
    assert dataset == f"zfs create -o recordsize=65536 -o primarycache=metadata {pool}/file"
    assert file == f"truncate -s {64 * MIB} {MOUNT_DIRECTORY}/{pool}/file/disk.raw"
    assert destroy == f"remove {pool} {MOUNT_DIRECTORY}/{pool} partuuid-a"
