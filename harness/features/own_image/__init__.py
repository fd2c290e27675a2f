"""Guests that boot from a disk image of the user: `image` of a guest, with libvirt.

The image is on the host, and is never written to: a guest gets a layer above it, and data for cloud-init with its keys
(`booting.py`, `create_own_image.sh`). It is measured when cloud-init is done, with the fio of the image or a copy of
virt-overhead's own. `image`, `firmware` and `fio` are rows of the option table (`model/guest.py`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from harness.feature import Feature, GuestImages

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from harness.guest.booting import Started
    from harness.guest.libvirt.guest import ToStart
    from harness.lab.created import HostThing
    from harness.lab.transport.base import Runner
    from harness.model.guest import GuestOptions
    from harness.model.option import Effective


def _refuse(options: GuestOptions, runner: Runner) -> str | None:
    from harness.features.own_image.booting import refuse_image

    return refuse_image(options, runner)


def _start(guest: ToStart) -> AbstractContextManager[Started[Any]]:
    from harness.features.own_image.booting import start_from_image

    return start_from_image(guest)


def _read_system(live: Element) -> Effective:
    from harness.features.own_image.booting import read_system

    return read_system(live)


def _list_things() -> tuple[type[HostThing], ...]:
    from harness.features.own_image.booting import GuestSystemFiles

    return (GuestSystemFiles,)


FEATURE = Feature(
    name="own_image",
    # Few tries, because most images that do not answer never will.
    guest_images=GuestImages(refuse=_refuse, start=_start, read=_read_system, tries=2, expected_seconds=30.0),
    list_things=_list_things,
)
