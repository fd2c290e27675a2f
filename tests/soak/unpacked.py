"""Packages of Debian for the lab host, whose image has none of them: unpacked on it when a test needs them."""

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
_SECONDS = 120.0


def _recipe(name: str, package: str) -> Recipe:
    """The files of the package that `build` beside this module packs, in `NAME_image`."""
    return Recipe(
        name,
        "extract",
        (package, "base-files", "coreutils", "dash", "findutils", "libc-bin", "tar"),
        {"build": (Path(__file__).parent / f"{name}_image" / "build").read_bytes()},
        outputs=(f"{name}.tar",),
        scratch_bytes=300 * _MIB,
        size_bytes=10 * _MIB,
        expected_s=20.0,
    )


LXC = _recipe("lxc", "lxc")
"""LXC, without its network."""
ISCSI = _recipe("iscsi", "open-iscsi")
"""The initiator of iSCSI. Its target is in the kernel."""


@contextmanager
def unpacked(host: Runner, recipe: Recipe) -> Iterator[None]:
    """The package's files on the host until the end of the block. Raises LabUnavailable if they cannot be fetched."""
    image, archive = provide(Cache(choose_cache()), [recipe], build, Events())[recipe.name], f"/root/{recipe.name}.tar"
    with ExitStack() as stack:
        remove = f"cd / && tar -tf {archive} | xargs rm -f {archive}"
        stack.callback(host.run, ["sh", "-c", remove], deadline=patience(_SECONDS))
        host.put(image.path / f"{recipe.name}.tar", archive, deadline=patience(_SECONDS))
        host.run(["sh", "-c", f"tar -C / -xf {archive} && ldconfig"], deadline=patience(_SECONDS))
        yield
