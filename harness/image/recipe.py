"""The recipes in images/: the content of each image, and a digest over everything that determines the result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import ConfigError
from harness.shipped import shipped

SUITE = "trixie"

BUILD_VERSION = 1
"""Increase it when harness/image/build.py changes how it treats a recipe."""

_MIB = 1 << 20
_COMPONENTS = ("main",)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one image is built.

    `files` are the contents of images/NAME except `packages`. `takes` maps each file from another image to that image's
    recipe. `outputs` are the files that the build must create. `scratch_bytes` and `size_bytes` are the space that it
    needs during the build and in the cache. `expected_s` is the duration of the first build in seconds. `components`
    are the parts of the archive with the packages. `archives` are lines of apt's sources.list, which replace the
    default archive of the suite. `keyring` is the one of `takes` with the keys of the archive, if it is not Debian's.
    """

    name: str
    variant: Literal["extract", "minbase"]
    packages: tuple[str, ...]
    files: Mapping[str, bytes]
    outputs: tuple[str, ...]
    takes: Mapping[str, Recipe] = field(default_factory=dict)
    authorized_key: str = ""
    scratch_bytes: int = 600 * _MIB
    size_bytes: int = 100 * _MIB
    expected_s: float = 20.0
    suite: str = SUITE
    components: tuple[str, ...] = _COMPONENTS
    archives: tuple[str, ...] = ()
    keyring: str = ""

    @property
    def digest(self) -> str:
        """sha256, hexadecimal. It does not include package versions, which depend on the day of the build."""
        digest = hashlib.sha256()
        parts = [
            ("recipe", f"{BUILD_VERSION} {self.suite} {self.variant}".encode()),
            ("packages", "\n".join(sorted(self.packages)).encode()),
            ("authorized_key", self.authorized_key.encode()),
            *(("file " + name, content) for name, content in sorted(self.files.items())),
            *((f"takes {name} from", base.digest.encode()) for name, base in sorted(self.takes.items())),
            # Only other ones: images that were built before recipes had these fields are still those of their recipes.
            *([("components", " ".join(self.components).encode())] if self.components != _COMPONENTS else []),
            *(("archive", archive.encode()) for archive in self.archives),
        ]
        for label, content in parts:
            digest.update(f"{label} {len(content)}\n".encode() + content)
        return digest.hexdigest()


def load_recipes(public_key: str, directory: Path | None = None) -> tuple[Recipe, Recipe, Recipe, Recipe]:
    """fio, guest, emulator and lab: each after the recipes whose files it uses. ConfigError if a recipe is missing."""
    directory = directory or shipped("images")
    fio = Recipe(
        "fio", "extract", *_read(directory / "fio"), outputs=("fio.tar",), size_bytes=10 * _MIB, expected_s=10.0
    )
    guest = Recipe(
        "guest",
        "extract",
        *_read(directory / "guest"),
        outputs=("vmlinuz", "initramfs", "guest.iso", "host_key.pub"),
        takes={"fio.tar": fio},
        authorized_key=public_key,
        scratch_bytes=900 * _MIB,
        expected_s=20.0,
    )
    emulator = Recipe(
        "emulator",
        "extract",
        *_read(directory / "emulator"),
        outputs=("ld-linux-x86-64.so.2", "qemu-system-x86_64", "bios-256k.bin", "linuxboot_dma.bin", "kvmvapic.bin"),
        scratch_bytes=500 * _MIB,
        size_bytes=80 * _MIB,
        expected_s=15.0,
    )
    lab = Recipe(
        "lab",
        "minbase",
        *_read(directory / "lab"),
        outputs=("vmlinuz", "initramfs", "root.img", "host_key.pub"),
        takes={"fio.tar": fio},
        authorized_key=public_key,
        scratch_bytes=2300 * _MIB,
        size_bytes=600 * _MIB,
        expected_s=70.0,
    )
    return fio, guest, emulator, lab


def _read(directory: Path) -> tuple[tuple[str, ...], dict[str, bytes]]:
    try:
        files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        lines = files.pop("packages").decode().splitlines()
        if "build" not in files:
            raise KeyError("build")
    except (OSError, KeyError, UnicodeDecodeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{directory} is not an image recipe: {why}",
            hint="install the package again, or restore the directory in the checkout; see docs/images.md",
        ) from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#")), files
