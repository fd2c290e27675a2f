"""Cloud images of two distributions, built from their packages: the lab cannot fetch the distributions' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.events import Events
from harness.image import Cache, choose_cache, provide
from harness.image.build import Recipe, build, load_recipes
from harness.image.keys import ensure_key

_MIB = 1 << 20
_DIRECTORY = Path(__file__).parent / "cloud_image"
_FILES = {path.name: path.read_bytes() for path in sorted(_DIRECTORY.iterdir())}
_COMMON = ("cloud-init", "grub-pc-bin", "iproute2", "openssh-server", "qemu-utils", "systemd-sysv", "udev")
_DISK = "disk.qcow2"
_KEYRING = "ubuntu-archive-keyring.gpg"
FIO = "/opt/fio/run"
"""fio in Ubuntu's image. Debian's has none, like the images for real clouds."""


@dataclass(frozen=True, slots=True)
class CloudImage:
    """The file on this machine, and what its guests report as their distribution."""

    path: Path
    system: str


def cloud_images(events: Events) -> Mapping[str, CloudImage]:
    """The images `debian` and `ubuntu`, from the cache or built now, which takes a few minutes.

    Raises LabUnavailable if they cannot be built: an archive cannot be reached.
    """
    found = provide(Cache(choose_cache()), recipes(), build, events)
    systems = {"debian": "Debian GNU/Linux 13", "ubuntu": "Ubuntu 24.04"}
    return {name: CloudImage(found[f"cloud-{name}"].path / _DISK, system) for name, system in systems.items()}


def recipes() -> tuple[Recipe, ...]:
    """The images, each after those whose files it uses."""
    fio = load_recipes(ensure_key().public)[0]
    debian = make_image("cloud-debian", ("linux-image-cloud-amd64", "systemd-resolved"))
    keyring = Recipe(
        "ubuntu-keyring",
        "extract",
        ("base-files", "coreutils", "dash", "ubuntu-keyring"),
        {"build": f"#!/bin/sh\ncp /usr/share/keyrings/{_KEYRING} /out/\n".encode()},
        outputs=(_KEYRING,),
    )
    takes = {"fio.tar": fio, _KEYRING: keyring}
    packages = ("linux-image-virtual", "initramfs-tools", "systemd-resolved")
    ubuntu = make_image("cloud-ubuntu", packages, suite="noble", takes=takes, keyring=_KEYRING)
    return fio, debian, keyring, ubuntu


def make_image(
    name: str,
    packages: tuple[str, ...],
    *,
    suite: str = "trixie",
    takes: Mapping[str, Recipe] | None = None,
    keyring: str = "",
    extension: bytes = b"",
    outputs: tuple[str, ...] = (),
) -> Recipe:
    """The recipe of a cloud image with these packages. `extension` is run at the end, and makes further `outputs`."""
    return Recipe(
        name,
        "minbase",
        (*_COMMON, *packages),
        {**_FILES, "build": _FILES["build"] + extension},
        outputs=(_DISK, *outputs),
        takes=takes or {},
        scratch_bytes=3000 * _MIB,
        size_bytes=500 * _MIB,
        expected_s=300.0,
        suite=suite,
        keyring=keyring,
    )
