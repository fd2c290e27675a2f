"""Guests that boot from a disk image of the user: `image` of a guest, with libvirt.

The image is on the host, and is never written to: a guest gets a layer above it, and data for cloud-init with its keys
(`booting.py`, `create_own_image.sh`). It is measured when cloud-init is done, with the fio of the image or a copy of
virt-overhead's own. `image`, `firmware` and `fio` are rows of the option table (`model/guest.py`).
"""
