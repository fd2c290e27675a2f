"""A recovery while something is measured: real commands, with a stand-in for mdadm and for the kernel's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError
from harness.features.arrays import building
from harness.features.arrays.building import BESIDE_SECONDS, FASTEST_KIB, RESERVE, SLOWEST_KIB, ArrayRebuild, take_out
from harness.lab.counters import MdDevice
from harness.lab.transport.base import Completed
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.measure.session import Session
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.mode import Arm, Mode, Place
from harness.results import ConditioningRecord
from tests.unit.granted import pretended
from tests.unit.loop_disks import RUNNER

# Keeps the array's state in files, as the kernel does. A member can be removed only at the second attempt.
MDADM = """#!/bin/sh
echo "$@" >>CALLED
case "$*" in
*--add*) echo recover >MD/sync_action; echo COMPLETED >MD/sync_completed;;
*--remove*) [ -e TRIED ] || { : >TRIED; echo "hot remove failed: Device or resource busy" >&2; exit 1; }
    rm TRIED; echo 1 >MD/degraded; echo idle >MD/sync_action; echo none >MD/sync_completed;;
*--zero-superblock*) exit ZEROED;;
esac
"""
ARRAY, SPARE = "/dev/md125", "/dev/sdh1"


class Kernel:
    """The files of one array below a directory, and what mdadm was called with."""

    def __init__(self, directory: Path, *, size_kib: int, completed: str = "0 / 30720", zeroed: int = 0) -> None:
        self.directory = directory
        self.md = directory / "md125" / "md"
        self.md.mkdir(parents=True)
        for name, text in {
            "component_size": str(size_kib),
            "degraded": "1",
            "sync_action": "idle",
            "sync_completed": "none",
            "sync_speed_min": "1000 (system)",
            "sync_speed_max": "200000 (system)",
        }.items():
            (self.md / name).write_text(f"{text}\n")
        (directory / "called").touch()
        script = MDADM.replace("COMPLETED", completed).replace("CALLED", f"{directory}/called")
        script = (
            script.replace("MD/", f"{self.md}/").replace("TRIED", f"{directory}/tried").replace("ZEROED", str(zeroed))
        )
        (directory / "mdadm").write_text(script)
        (directory / "mdadm").chmod(0o755)

    def read(self, name: str) -> str:
        return (self.md / name).read_text().strip()

    @property
    def called(self) -> list[str]:
        return (self.directory / "called").read_text().splitlines()

    def run(self, _devices: object, argv: Sequence[str], *, deadline: float, check: bool = True) -> Completed:
        shell, option, script, *words = argv
        own = script.replace("/sys/class/block", str(self.directory)).replace("udevadm settle", ":")
        own = f'PATH="{self.directory}:$PATH"\n{own}'
        return RUNNER.run([shell, option, own, *words], deadline=deadline, check=check)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def make(**properties: int | str) -> Kernel:
        made = Kernel(tmp_path, **properties)  # type: ignore[arg-type]
        monkeypatch.setattr(building, "run_all", made.run)
        return made

    return make


def spare() -> ArrayRebuild:
    return ArrayRebuild(pretended(ARRAY), pretended(SPARE))


def test_a_member_is_taken_out_with_its_superblock_and_md_is_given_time(kernel: Callable[..., Kernel]) -> None:
    made = kernel(size_kib=1000)
    take_out(pretended(ARRAY), pretended(SPARE))
    assert made.called == [
        f"--manage --quiet {ARRAY} --fail {SPARE}",
        f"--manage --quiet {ARRAY} --remove {SPARE}",
        f"--manage --quiet {ARRAY} --remove {SPARE}",
        f"--quiet --zero-superblock {SPARE}",
    ]


def test_a_member_that_cannot_be_taken_out_is_an_error(kernel: Callable[..., Kernel]) -> None:
    made = kernel(size_kib=1000, zeroed=1)
    with pytest.raises(HostError):
        take_out(pretended(ARRAY), pretended(SPARE))
    assert len(made.called) == 3 + 20


@pytest.mark.parametrize(
    ("size_kib", "seconds"), [(64 * 1024 * 1024, 5.0), (819_200, 5.0), (15_360, 12.5)], ids=["large", "middle", "small"]
)
def test_the_limit_is_the_kernels_default_or_lets_the_recovery_last(
    kernel: Callable[..., Kernel], size_kib: int, seconds: float
) -> None:
    made = kernel(size_kib=size_kib)
    with spare().running(seconds):
        limit, least = int(made.read("sync_speed_max")), int(made.read("sync_speed_min"))
        assert limit <= FASTEST_KIB
        assert least == min(SLOWEST_KIB, limit)
        assert size_kib / limit >= seconds + BESIDE_SECONDS
        assert limit == FASTEST_KIB or size_kib / limit <= (seconds + BESIDE_SECONDS) * RESERVE + 2
        assert made.called == [f"--manage --quiet {ARRAY} --add {SPARE}"]
        assert made.read("sync_action") == "recover"
    assert made.called[-1] == f"--quiet --zero-superblock {SPARE}"
    assert made.read("sync_action") == "idle"


def test_a_recovery_that_does_not_begin_is_an_error_that_names_array_and_spare(kernel: Callable[..., Kernel]) -> None:
    kernel(size_kib=15_360, completed="delayed")
    with (
        pytest.raises(
            HostError, match="does not rebuild its spare /dev/sdh1: sync_action is recover, sync_completed"
        ) as e,
        spare().running(5.0),
    ):
        pass
    assert "/proc/mdstat" in str(e.value.hint)


def test_the_first_error_remains_and_the_spare_is_taken_out(kernel: Callable[..., Kernel]) -> None:
    made = kernel(size_kib=15_360, zeroed=1)
    with pytest.raises(ZeroDivisionError), spare().running(5.0):
        raise ZeroDivisionError
    assert f"--manage --quiet {ARRAY} --fail {SPARE}" in made.called


def test_only_the_arms_of_the_mode_on_the_array_start_a_recovery(kernel: Callable[..., Kernel]) -> None:
    made = kernel(size_kib=15_360)
    mode = Mode("md", Md(5, 3, state="rebuilding", spares=1), Attach())
    bare = BlockSource("/dev/sdb", "block", 0, 1 << 24)
    layouts = Layouts(bare, {"md": bare}, 1 << 24, "sdb", arrays={"md": "md125"}, rebuilds={"md": spare()})
    host: Any = None
    md125 = (MdDevice("md125"),)
    at = Session(host, layouts, None, {}, {}, ConditioningRecord("fill", None, (), None), md={"md125": md125})
    for arm in (Arm(Place.HOST), Arm(Place.GUEST, replace(mode, name="other"))):
        with at.rebuilding(arm, 5.0):
            assert made.read("sync_action") == "idle"
        assert at.arrays(arm) == ()
    for place in (Place.TWIN, Place.GUEST):
        with at.rebuilding(Arm(place, mode), 5.0):
            assert made.read("sync_action") == "recover"
        assert at.arrays(Arm(place, mode)) == md125
    assert len([call for call in made.called if "--add" in call]) == 2
