"""What a host is told to do for layers that this machine has no kernel for: arrays and ZFS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.events import Event, Events, StepAdvanced
from harness.lab.paths import MOUNT_DIRECTORY
from harness.lab.transport.base import Completed
from harness.layout import md
from harness.layout.regions import Region
from harness.layout.source import BlockSource, Sources
from harness.layout.zfs import Datasets
from harness.scenario.layouts import Md, ZfsFile, Zvol

MIB = 1024**2
NAME = "voh-20260101-000000-abcd"


class Listening:
    """A host that writes down what it is told, and answers as `answer` says: of the words, to its script."""

    def __init__(self, answer: Callable[[Sequence[str], str], str] = lambda _words, _script: "") -> None:
        self.name = "host here"
        self.told: list[str] = []
        self._answer = answer

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,  # noqa: ARG002
        stdin: str | bytes | None = None,
        check: bool = True,  # noqa: ARG002
    ) -> Completed:
        self.told.append(" ".join(argv))
        return Completed(tuple(argv), 0, self._answer(argv, str(stdin or "")), "")

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def creations(self) -> list[str]:
        return [told for told in self.told if told.startswith("mdadm --create")]


class ArrayHost(Listening):
    """One whose arrays are `md127`, and in sync when they have been asked about `asked` times."""

    def __init__(self, asked: int = 1) -> None:
        super().__init__(self._say)
        self._left = asked

    def _say(self, words: Sequence[str], script: str) -> str:
        if words[0] == "blockdev":
            return f"{64 * MIB}\n"
        if "resync_start" in script:
            self._left -= 1
            return "synced\n" if self._left <= 0 else "4096 / 131072\n"
        return "/dev/md127\n" if "sync_speed_max" in script else ""


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
    members = [f"/dev/sd{letter}1" for letter in "abcd"[: base.disks]]
    with md.array(host, base, f"{NAME}-m0", members, Events()) as device:
        assert device == "/dev/md127"
    assert host.creations() == [
        f"mdadm --create /dev/md/{NAME}-m0 --quiet --run --metadata=1.2 --homehost=any {options} {' '.join(members)}"
    ]
    assert any(told.startswith("blockdev") for told in host.told) == (base.level in (5, 6))
    assert host.told[-1] == f"sh -s -- {' '.join(members)}"


def test_two_legs_are_two_arrays_and_a_stripe_over_them() -> None:
    host = ArrayHost()
    with md.array(host, Md(5, 6, legs=2), f"{NAME}-m0", [f"/dev/sd{letter}1" for letter in "abcdef"], Events()):
        pass
    first, second, stripe = host.creations()
    assert f"{NAME}-m0a " in first
    assert first.endswith("--level=5 --raid-devices=3 --chunk=512 --bitmap=internal /dev/sda1 /dev/sdb1 /dev/sdc1")
    assert f"{NAME}-m0b " in second
    assert second.endswith(" /dev/sdd1 /dev/sde1 /dev/sdf1")
    assert f"{NAME}-m0 " in stripe
    assert stripe.endswith("--level=0 --raid-devices=2 --chunk=512 /dev/md127 /dev/md127")
    # The stripe is taken apart before its legs.
    assert host.told[-3:] == [
        "sh -s -- /dev/md127 /dev/md127",
        "sh -s -- /dev/sdd1 /dev/sde1 /dev/sdf1",
        "sh -s -- /dev/sda1 /dev/sdb1 /dev/sdc1",
    ]


def test_waiting_for_the_resync_tells_how_far_it_is() -> None:
    seen: list[Event] = []
    with md.array(ArrayHost(asked=3), Md(6, 4), f"{NAME}-m0", ["/dev/a"] * 4, Events(seen.append)):
        pass
    assert [each.how_far for each in seen if isinstance(each, StepAdvanced)] == ["4096 / 131072 sectors"] * 2


def test_an_array_that_is_never_in_sync_is_an_error_that_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(md, "PATIENCE", 0.0)
    monkeypatch.setattr(md, "SLOWEST_SYNC", 10**15)
    host = ArrayHost(asked=10**9)
    with (
        pytest.raises(
            HostError, match=r"array voh-.*-m0 of 4 disks and 64 MiB is not in sync .*: 4096 / 131072"
        ) as error,
        md.array(host, Md(6, 4), f"{NAME}-m0", ["/dev/a"] * 4, Events()),
    ):
        pass
    assert "/proc/mdstat" in str(error.value.hint)
    assert host.told[-1].startswith("sh -s -- /dev/a")


def test_volumes_and_files_of_zfs_share_a_pool_that_no_boot_imports() -> None:
    host = Listening()
    layer = Datasets((("zvol", Zvol(16384)), ("file", ZfsFile(65536))))
    region = Region("zfs", "/dev/sda3", MIB, layer.need.bytes(64 * MIB))
    pool = f"{NAME}-zfs"
    with layer.built(host, region, NAME, 64 * MIB) as sources:
        assert sources == {
            "zvol": Sources.same(BlockSource(f"/dev/zvol/{pool}/zvol", "block", 0, 64 * MIB)),
            "file": Sources.same(BlockSource(f"{MOUNT_DIRECTORY}/{pool}/file/disk.raw", "file", 0, 64 * MIB)),
        }
    create, zvol, dataset, file, _, destroy = host.told
    assert create.startswith("zpool create -f -o ashift=12 -o cachefile=none ")
    assert create.endswith(f" -m {MOUNT_DIRECTORY}/{pool} {pool} /dev/sda3")
    assert zvol == f"zfs create -V {64 * MIB} -o volblocksize=16384 {pool}/zvol"
    assert dataset == f"zfs create -o recordsize=65536 {pool}/file"
    assert file == f"truncate -s {64 * MIB} {MOUNT_DIRECTORY}/{pool}/file/disk.raw"
    assert destroy == f"sh -s -- {pool} {MOUNT_DIRECTORY}/{pool}"
