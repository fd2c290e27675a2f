"""A Ceph cluster on the lab host, whose image has none: monitor, manager and OSDs from Debian's packages."""

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
_FILES = Path(__file__).parent / "ceph_image"
_SECONDS = 300.0
_ARCHIVE = "/root/ceph.tar.gz"
POOL = "vms"
"""The pool for images, with two replicas."""
_INSTALL = f"""
set -e
tar -C / --skip-old-files -xzf {_ARCHIVE}
ldconfig
udevadm control --reload
modprobe rbd
"""
_REMOVE = f"""
modprobe -r rbd || exit
cd / && tar -tzf {_ARCHIVE} | xargs rm -f {_ARCHIVE}
ldconfig
udevadm control --reload
"""


def ceph_recipe(present: str) -> Recipe:
    """The files of Ceph's packages without those of the packages that are `present`, a name in each line."""
    tools = ("base-files", "coreutils", "dash", "dpkg", "findutils", "grep", "gzip", "tar", "libc6")
    return Recipe(
        "ceph",
        "extract",
        ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-common", "qemu-block-extra", *tools),
        {"build": (_FILES / "build").read_bytes(), "present": present.encode()},
        outputs=("ceph.tar.gz",),
        scratch_bytes=1800 * _MIB,
        size_bytes=120 * _MIB,
        expected_s=120.0,
    )


@contextmanager
def ceph_installed(host: Runner) -> Iterator[None]:
    """The programs of Ceph on the host, and the kernel's client. They are removed at the end.

    Raises LabUnavailable if the image cannot be built, HostError.
    """
    list_packages = ["dpkg-query", "-W", "-f", "${Package}\n"]
    present = host.run(list_packages, deadline=patience(60)).stdout
    image = provide(Cache(choose_cache()), [ceph_recipe(present)], build, Events())["ceph"]
    with ExitStack() as stack:
        stack.callback(host.run, ["sh", "-c", _REMOVE], deadline=patience(_SECONDS))
        host.put(image.path / "ceph.tar.gz", _ARCHIVE, deadline=patience(_SECONDS))
        host.run(["sh", "-c", _INSTALL], deadline=patience(_SECONDS))
        yield


def script(name: str) -> str:
    """The script that starts the cluster on the block devices that it gets as words (`start`), or ends it (`stop`)."""
    return (_FILES / name).read_text()
