"""LXC for the lab host, whose image has none: Debian's package, unpacked on it when a test needs it."""

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
_BUILD = Path(__file__).parent / "lxc_image" / "build"
_SECONDS = 120.0
_ARCHIVE = "/root/lxc.tar"
_INSTALL = f"tar -C / -xf {_ARCHIVE} && ldconfig"
_REMOVE = f"cd / && tar -tf {_ARCHIVE} | xargs rm -f {_ARCHIVE}"
LXC = Recipe(
    "lxc",
    "extract",
    ("lxc", "base-files", "coreutils", "dash", "findutils", "libc-bin", "tar"),
    {"build": _BUILD.read_bytes()},
    outputs=("lxc.tar",),
    scratch_bytes=300 * _MIB,
    size_bytes=10 * _MIB,
    expected_s=20.0,
)


@contextmanager
def lxc_installed(host: Runner) -> Iterator[None]:
    """LXC on the host until the end of the block. Raises LabUnavailable if the image cannot be built."""
    image = provide(Cache(choose_cache()), [LXC], build, Events())["lxc"]
    with ExitStack() as stack:
        stack.callback(host.run, ["sh", "-c", _REMOVE], deadline=patience(_SECONDS))
        host.put(image.path / "lxc.tar", _ARCHIVE, deadline=patience(_SECONDS))
        host.run(["sh", "-c", _INSTALL], deadline=patience(_SECONDS))
        yield
