"""How large the regions of a disk are, and what a host lacks for a layout."""

from __future__ import annotations

import pytest

from harness.errors import Unsupported
from harness.lab.facts import HostFacts
from harness.layout.prerequisites import missing_prerequisite
from harness.layout.regions import STEP, span_for
from harness.scenario.layouts import Device, Lvm, RawFile

MIB = 1024**2
GIB = 1024**3
READY = {
    "tool_lvm": "/sbin/lvm",
    "device_mapper": "252 device-mapper",
    "tool_mkfs.ext4": "/sbin/mkfs.ext4",
    "module_ext4": "yes",
}


@pytest.mark.parametrize(
    ("disk", "fixed", "shares", "wanted", "span"),
    [
        (256 * GIB, 0, 1, 4 * GIB, 4 * GIB),
        (1 * GIB, 0, 1, 64 * MIB, 64 * MIB),
        (1 * GIB, 0, 1, 4 * GIB, 1020 * MIB),
        (1 * GIB, 4 * MIB, 2, 4 * GIB, 508 * MIB),
        (1 * GIB, 68 * MIB, 4.1, 4 * GIB, 232 * MIB),
        (18 * MIB, 0, 1, 4 * GIB, 16 * MIB),
    ],
    ids=["as wanted", "small", "the whole disk but its table", "two regions", "files with their share", "smallest"],
)
def test_a_span_is_what_is_wanted_or_what_fits_in_whole_steps(
    disk: int, fixed: int, shares: float, wanted: int, span: int
) -> None:
    found = span_for(disk, fixed=fixed, shares=shares, wanted=wanted)
    assert found == span
    assert found % STEP == 0
    assert found * shares + fixed < disk


@pytest.mark.parametrize(("disk", "shares"), [(17 * MIB, 1), (64 * MIB, 4), (0, 1)])
def test_a_disk_without_room_says_how_many_regions_do_not_fit_and_what_to_do(disk: int, shares: float) -> None:
    with pytest.raises(Unsupported, match=f"no room for {shares} regions of 16 MiB") as error:
        span_for(disk, fixed=0, shares=shares, wanted=GIB)
    assert error.value.hint == "select fewer modes with -k, or use a larger disk"


@pytest.mark.parametrize("layout", [Device(), Lvm(), RawFile()])
def test_a_host_with_everything_lacks_nothing(layout: Device | Lvm | RawFile) -> None:
    assert missing_prerequisite(layout, HostFacts(READY)) is None


@pytest.mark.parametrize(
    ("layout", "lacking", "why"),
    [
        (Lvm(), "tool_lvm", "LVM is not installed there: apt-get install lvm2"),
        (
            Lvm(),
            "device_mapper",
            "its kernel has no device-mapper, which LVM needs: load dm_mod, or measure on another host",
        ),
        (RawFile(), "tool_mkfs.ext4", "mkfs.ext4 is not installed there: apt-get install e2fsprogs"),
    ],
)
def test_what_a_host_lacks_for_a_layout_is_told_with_the_remedy(layout: Lvm | RawFile, lacking: str, why: str) -> None:
    assert missing_prerequisite(layout, HostFacts(READY | {lacking: ""})) == why


def test_the_bare_device_needs_nothing_of_a_host() -> None:
    assert missing_prerequisite(Device(), HostFacts({})) is None
