"""A qcow2 file and its twin: a RAW file of the same size in the same directory, because fio cannot read qcow2.

The overhead of the guest relative to the twin therefore includes the cost of the format and of virtualisation.
"""

from __future__ import annotations

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
    """The space for both files."""
    return Need(_FIXED_CLUSTERS * layout.cluster_size, 2 + _BYTES_PER_CLUSTER / layout.cluster_size)


def make(region: Writable, path: str, size: int, layout: Qcow2) -> Sources:
    """`path`.qcow2 for the guest and `path`.raw for the host, `size` bytes each, on the file system on `region`.

    Raises SafetyError if `path` is not on `region`, and HostError.
    """
    image = f"{path}.qcow2"
    options = {
        "cluster_size": str(layout.cluster_size),
        "preallocation": layout.preallocation,
        "lazy_refcounts": "on" if layout.lazy_refcounts else "off",
    }
    words = ",".join(f"{key}={value}" for key, value in options.items())
    create = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", words, image, str(size)]
    region.run(create, deadline=60 + size / raw_file.SLOWEST_WRITE)
    (file,) = built_on([region], [image])
    twin = raw_file.make(region, f"{path}.raw", size, layout.twin.preallocation)
    return Sources(BlockSource(image, "file", 0, size, "qcow2", grant=file), twin)


def fill(sources: Sources) -> None:
    """Copy the twin's data into every cluster of the image: the host cannot fill it otherwise. Raises HostError."""
    copy = ["qemu-img", "convert", "-q", "-n", "-S", "0", "-T", "none", "-t", "none", "-f", "raw", "-O", "qcow2"]
    deadline = 60 + 2 * sources.twin.size / raw_file.SLOWEST_WRITE
    writable = [sources.twin.writable, sources.guest.writable]
    run_all(writable, [*copy, sources.twin.path, sources.guest.path], deadline=deadline)
