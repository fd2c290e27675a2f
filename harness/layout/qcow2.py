"""A qcow2 file and its twin: a RAW file of the same size in the same directory, because fio cannot read qcow2.

The overhead of the guest relative to the twin therefore includes the cost of the format and of virtualisation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from harness.lab.guard import Writable, built_on, run_all
from harness.layout import raw_file
from harness.layout.regions import Need
from harness.layout.source import BlockSource, Sources
from harness.model.layout import Qcow2

_BYTES_PER_CLUSTER = 10
"""8 for its entry in an L2 table, 2 for its reference count (QEMU's docs/interop/qcow2.rst)."""
_FIXED_CLUSTERS = 8
"""Header, L1 table, refcount table, and one partly used cluster of each kind of table."""


def need(layout: Qcow2) -> Need:
    """The space for both files, and for what the guest writes on top of snapshots."""
    fixed = _FIXED_CLUSTERS * layout.cluster_size * (1 + layout.snapshots)
    image = 1 + _BYTES_PER_CLUSTER / layout.cluster_size
    return Need(fixed, 1 + image * (2 if layout.snapshots else 1))


def image_names(name: str, layout: Qcow2) -> list[str]:
    """The files of the image: the one with the data, then each snapshot. The guest has the last one."""
    return [f"{name}.qcow2", *(f"{name}-{number}.qcow2" for number in range(1, layout.snapshots + 1))]


def data_file(name: str, layout: Qcow2) -> str:
    """The file with the data of the image; empty if that is in the image."""
    return f"{name}.data" if layout.data_file else ""


def make(region: Writable, path: str, size: int, layout: Qcow2) -> Sources:
    """`path`.qcow2 for the guest and `path`.raw for the host, `size` bytes each, on the file system on `region`.

    With snapshots, the guest has the last of them. They are empty: all data is in `path`.qcow2.

    Raises SafetyError if `path` is not on `region`, and HostError.
    """
    image, *snapshots = image_names(path, layout)
    always = f"cluster_size={layout.cluster_size},lazy_refcounts={'on' if layout.lazy_refcounts else 'off'}"
    words = f"{always},preallocation={layout.preallocation}"
    if data := data_file(path, layout):
        # `data_file_raw`: each block is at its own place in the file, as in a RAW file.
        words += f",data_file={data},data_file_raw=on"
    create = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", words, image, str(size)]
    region.run(create, deadline=60 + size / raw_file.SLOWEST_WRITE)
    for below, snapshot in pairwise([image, *snapshots]):
        # An image on top of another one has the size of that one, and cannot be preallocated.
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", always, "-b", below, "-F", "qcow2", snapshot]
        region.run(create, deadline=60)
    image_source, *others = [
        BlockSource(each, "file", 0, size, "qcow2", grant=file)
        for each, file in zip([image, *snapshots], built_on([region], [image, *snapshots]), strict=True)
    ]
    twin = raw_file.make(region, f"{path}.raw", size, layout.twin.preallocation)
    image_source = replace(image_source, data_file=data)
    return Sources(replace(others[-1], data=image_source) if others else image_source, twin)


def fill(sources: Sources) -> None:
    """Copy the twin's data into every cluster of the image: the host cannot fill it otherwise. Raises HostError.

    Below snapshots, which are still empty, this is the image at the bottom.
    """
    image = sources.guest.data or sources.guest
    copy = ["qemu-img", "convert", "-q", "-n", "-S", "0", "-T", "none", "-t", "none", "-f", "raw", "-O", "qcow2"]
    deadline = 60 + 2 * sources.twin.size / raw_file.SLOWEST_WRITE
    writable = [sources.twin.writable, image.writable]
    run_all(writable, [*copy, sources.twin.path, image.path], deadline=deadline)
