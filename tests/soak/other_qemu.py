"""A second QEMU for the lab host, from Debian's backports, beside the one of its image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness.events import Events
from harness.image import Cache, choose_cache, provide
from harness.image.build import SUITE, Recipe, build
from harness.lab.transport.base import Runner
from tests.patience import patience

ROOT = "/opt/qemu-new"
EMULATOR = f"{ROOT}/qemu"

_MIB = 1 << 20
_SECONDS = 120.0
_ARCHIVE = "/root/qemu.tar"
_BACKPORTS = f"{SUITE}-backports"
_FROM_BACKPORTS = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
# The lab host has the libraries, for its own QEMU.
_BUILD = b"""#!/bin/sh
set -eu
cd /
tar --owner=0 --group=0 -cf /out/qemu.tar usr/bin/qemu-system-x86_64 usr/lib/x86_64-linux-gnu/qemu usr/share/qemu \\
    usr/share/seabios
"""
# Debian's QEMU looks for firmware and modules at fixed places, and aborts if the modules there are of another version.
# The process keeps the name of the script, which a run reads back.
_WRAPPER = f"""#!/bin/bash
export QEMU_MODULE_DIR={ROOT}/usr/lib/x86_64-linux-gnu/qemu
exec -a "$0" {ROOT}/usr/bin/qemu-system-x86_64 -L {ROOT}/usr/share/qemu "$@"
"""
RECIPE = Recipe(
    "qemu-backports",
    "extract",
    (*(f"{package}/{_BACKPORTS}" for package in _FROM_BACKPORTS), "base-files", "coreutils", "dash", "tar"),
    {"build": _BUILD},
    outputs=("qemu.tar",),
    scratch_bytes=500 * _MIB,
    size_bytes=60 * _MIB,
    archives=tuple(f"deb http://deb.debian.org/debian {suite} main" for suite in (SUITE, _BACKPORTS)),
)


@contextmanager
def other_qemu(host: Runner) -> Iterator[str]:
    """The path of the second QEMU on the host. It is removed at the end.

    Raises LabUnavailable if Debian's archive cannot be reached. Raises HostError if the program does not run there.
    """
    image = provide(Cache(choose_cache()), [RECIPE], build, Events())[RECIPE.name]
    with ExitStack() as stack:
        stack.callback(host.run, ["rm", "-rf", ROOT, _ARCHIVE], deadline=patience(_SECONDS))
        host.put(image.path / "qemu.tar", _ARCHIVE, deadline=patience(_SECONDS))
        host.run(["mkdir", "-p", ROOT], deadline=patience(_SECONDS))
        host.run(["tar", "-C", ROOT, "-xf", _ARCHIVE], deadline=patience(_SECONDS))
        host.run(["rm", _ARCHIVE], deadline=patience(_SECONDS))
        host.run(["sh", "-c", f"cat >{EMULATOR} && chmod +x {EMULATOR}"], stdin=_WRAPPER, deadline=patience(_SECONDS))
        host.run([EMULATOR, "--version"], deadline=patience(_SECONDS))
        yield EMULATOR
