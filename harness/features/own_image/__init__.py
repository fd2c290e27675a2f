"""Guests that boot from a disk image of the user: `image` of a guest, with libvirt.

The image is on the host, and is never written to: a guest gets a layer above it, and data for cloud-init with its keys
(`booting.py`, `create_own_image.sh`). It is measured when cloud-init is done, with the fio of the image or a copy of
virt-overhead's own. `image`, `firmware` and `fio` are rows of the option table (`model/guest.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, GuestImages, import_later

if TYPE_CHECKING:
    from harness.features.own_image import booting
else:
    (booting,) = import_later(__name__, "booting")


FEATURE = Feature(
    name="own_image",
    # Few tries, because most images that do not answer never will.
    brings=(
        GuestImages(
            refuse=lambda options, runner: booting.refuse_image(options, runner),
            start=lambda guest: booting.start_from_image(guest),
            read=lambda live: booting.read_system(live),
            tries=2,
            expected_seconds=30.0,
        ),
    ),
    list_things=lambda: (booting.GuestSystemFiles,),
)
