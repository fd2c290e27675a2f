"""ZFS as its users have it: what its datasets and pools are, read back, and what its disks move for the bytes of a job.

The layouts `zvol` and `zfs` are of the kernel, with their properties as options. The feature builds them: in a pool on
a disk, or in a dataset that is in use. After a volume was created, it reads the properties that ZFS reports of it, and
the shape and state of its pool, into `Effective`. A cell on ZFS has a record of the bytes that the disks of the pool
moved for each byte of its job. The report names what users look for: a dataset on which nothing is durable, records
that are larger than the writes, and what copies or parity cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.feature import Feature, FeatureLayer, FeatureRecords, FeatureStorage, NodeStorage, Subject, import_later
from harness.files import read_script
from harness.lab.inventory import StorageKind
from harness.model.layout import OnZfs, Zvol
from harness.scenario.legality import describe_conflict
from harness.scenario.scenario import Scenario
from harness.units import format_size

if TYPE_CHECKING:
    from harness.features.zfs import report, volumes
    from harness.model.mode import Mode
    from harness.results import CellRecord
else:
    report, volumes = import_later(__name__, "report", "volumes")

KIB = 1024
_DATASET = re.compile(r"[A-Za-z][\w.:-]*(/[\w.:-]+)*")


def _check_dataset(text: str) -> str:
    if not _DATASET.fullmatch(text):
        raise ValueError('allowed: a ZFS pool or dataset, for example "tank/vms" (zfs list shows them)')
    return text


def _refuse_block_size(entry: Mapping[str, Any], mode: Mode) -> str | None:
    """Why zvols on this storage of Proxmox VE do not have the block size that the mode requests; None if they do."""
    layout, storage = mode.layout, entry["storage"]
    if not isinstance(layout, Zvol) or layout.volblocksize == Zvol().volblocksize:
        return None
    block_size = _parse_bytes(str(entry.get("blocksize", "")))
    if block_size == layout.volblocksize:
        return None
    wanted = f"{layout.volblocksize // KIB}k" if layout.volblocksize % KIB == 0 else str(layout.volblocksize)
    has = f"a block size of {format_size(block_size)}" if block_size else "no block size set"
    return (
        f"storage {storage} has {has}, and virt-overhead does not change the settings of a storage in use: "
        f"pvesm set {storage} --blocksize {wanted} for a volblocksize of {format_size(layout.volblocksize)}"
    )


def _parse_bytes(text: str) -> int:
    """A block size as Proxmox VE writes it, in bytes; 0 if it is not one."""
    match = re.fullmatch(r"([0-9]{1,8})([kmKM]?)", text)
    return int(match[1]) * {"": 1, "k": KIB, "m": KIB**2}[match[2].lower()] if match else 0


def annotate(cells: Sequence[CellRecord]) -> Iterator[tuple[str, str]]:
    """What the host reported of the volume of a cell and was not requested: the id of the cell, and the note."""
    for cell in cells:
        layout, effective = cell.mode_detail.layout, cell.effective
        if not isinstance(layout, OnZfs) or effective.host_zfs_pool is None:
            continue
        if effective.host_zfs_sync == "disabled":
            whose = "as requested" if layout.sync == "disabled" else "which the dataset above it has"
            why = "what is written is not durable when it completes, and a power failure loses the last seconds"
            yield cell.id, f"sync is disabled on its dataset, {whose}: {why}"
        size = effective.host_zfs_volblocksize
        if isinstance(layout, Zvol) and size not in (None, layout.volblocksize):
            yield cell.id, f"its volblocksize is {format_size(size)}, that of its storage"
        if cell.job.writes and (effective.host_zfs_txg_timeout or 0) > layout.write_interval:
            why = (
                f"slices are made for {layout.write_interval:g} s, so what an arm leaves may be written during another"
            )
            yield cell.id, f"ZFS writes after {effective.host_zfs_txg_timeout} s there (zfs_txg_timeout): {why}"
        shape, *wrong = effective.host_zfs_pool.split(", ")
        if wrong:
            yield cell.id, f"its pool ({shape}) is not as it should be: {', '.join(wrong)}"


def find_undeclared_caches(scenario: Scenario) -> Iterator[str]:
    """Modes that ZFS serves from memory, without saying so."""
    for mode in scenario.declared_modes:
        if isinstance(mode.layout, OnZfs) and mode.layout.primarycache == "all" and not mode.cached:
            why = "because ZFS then serves reads from memory (ARC), which is to be declared"
            allowed = "cached = true, or primarycache metadata"
            conflict = describe_conflict('layout.primarycache = "all"', "no cached", why, allowed)
            yield f"mode.{mode.name}: {conflict}"


FEATURE = Feature(
    name="zfs",
    subject=Subject(
        in_cell=lambda cell, _slices: isinstance(cell.mode.layout, OnZfs),
        in_record=lambda cell: isinstance(cell.mode_detail.layout, OnZfs),
    ),
    brings=(
        FeatureLayer(lambda: volumes.Datasets),
        FeatureStorage(
            key="dataset",
            kind=StorageKind(
                "ZFS dataset",
                ("zvol", "zfs"),
                space="zfspool",
                allocates="when written",
                hint="see zfs list on the host, and correct the name in the lab file",
            ),
            check=_check_dataset,
            script=read_script("harness.features.zfs", "dataset.sh"),
            load_volumes=lambda: volumes.StoredDatasets(),
            on_node=NodeStorage(refuse=_refuse_block_size),
        ),
    ),
    find_problems=find_undeclared_caches,
    list_things=lambda: (volumes.Pool, volumes.StoredDataset),
    read_volume=lambda runner, layout, path: volumes.read_zfs(runner, path) if isinstance(layout, OnZfs) else None,
    annotate=annotate,
    load_records=lambda: (
        FeatureRecords(
            key="zfs",
            record=report.ZfsRecord,
            place=14,
            description="One entry per measured cell on ZFS: what the pool's disks moved for the bytes of its job.",
            compute=report.account_cells,
        ),
    ),
)
