"""ZFS for the lab host, whose image has none: built from Debian's source for its kernel when a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.events import Events
from harness.image import Cache, choose_cache, provide
from harness.image.build import Recipe, build
from harness.lab.transport.base import Runner
from tests.patience import patience

_MIB = 1 << 20
_BUILD = Path(__file__).parent / "zfs_image" / "build"
_SECONDS = 180.0
_ARCHIVE = "/root/zfs.tar"
# The memory of the lab host also has the disks and two guests: ZFS would take most of it for its cache.
_INSTALL = f"""
set -e
tar -C / -xf {_ARCHIVE}
depmod
udevadm control --reload
modprobe zfs zfs_arc_max={256 * _MIB}
"""
_REMOVE = f"""
[ ! -d /sys/module/zfs ] || modprobe -r zfs || exit
cd / && tar -tf {_ARCHIVE} | xargs rm -f {_ARCHIVE}
rmdir --ignore-fail-on-non-empty "/usr/lib/modules/$(uname -r)/updates"
depmod
udevadm control --reload
"""


def zfs_recipe(kernel: str) -> Recipe:
    """The image with ZFS for this kernel of Debian. Debian has ZFS in `contrib`, and only as source."""
    tools = ("base-files", "coreutils", "dash", "diffutils", "findutils", "gcc", "grep", "gzip", "libc6-dev", "make")
    return Recipe(
        "zfs",
        "extract",
        ("zfs-dkms", "zfsutils-linux", f"linux-headers-{kernel}", *tools, "mawk", "sed", "tar", "xz-utils"),
        {"build": _BUILD.read_bytes()},
        outputs=("zfs.tar",),
        scratch_bytes=1200 * _MIB,
        size_bytes=20 * _MIB,
        expected_s=600.0,
        components=("main", "contrib"),
    )


@contextmanager
def zfs_installed(host: Runner) -> Iterator[None]:
    """ZFS on the host, loaded. It is removed at the end, which fails if a pool is left.

    Raises LabUnavailable if the image cannot be built: Debian's archive cannot be reached, or no longer has the headers
    of the host's kernel. Raises HostError if the host does not load it.
    """
    kernel = host.run(["uname", "-r"], deadline=patience(20)).stdout.strip()
    image = provide(Cache(choose_cache()), [zfs_recipe(kernel)], build, Events())["zfs"]
    with ExitStack() as stack:
        stack.callback(host.run, ["sh", "-c", _REMOVE], deadline=patience(_SECONDS))
        host.put(image.path / "zfs.tar", _ARCHIVE, deadline=patience(_SECONDS))
        host.run(["sh", "-c", _INSTALL], deadline=patience(_SECONDS))
        yield
