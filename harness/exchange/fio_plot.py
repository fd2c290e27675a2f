"""Writes a tree of fio's JSON output that fio-plot can draw, with the directories and names of bench-fio."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from harness.errors import ConfigError, MeasurementError, ResultsError
from harness.exchange.document import Document, read_documents
from harness.exchange.merging import RanSlice, merged_document
from harness.exchange.rows import Row
from harness.exchange.snapshots import last_of_each_call
from harness.files import read_regular, write_atomically
from harness.measure.fio import is_ramp
from harness.model.cell import Place
from harness.model.job import Job
from harness.model.mode import ModeDetail
from harness.results import RunStore
from harness.units import short_size
from harness.untrusted import JSON_BYTES


@dataclass(frozen=True, slots=True)
class _Key:
    """What one file of the tree is about."""

    disk: str
    arm: str
    mode: ModeDetail | None
    """What the name of the arm's mode stands for; None for the bare host."""
    job: Job

    @property
    def path(self) -> Path:
        """DISK/ARM/BS/RW-IODEPTH-NUMJOBS.json. A mixed job has one more directory with its share of reads."""
        job = self.job
        mixed = [f"{job.rw}{job.read_share * 100:.0f}"] if job.read_share is not None else []
        bs = short_size(job.bs) + (f"-i{job.rate}" if job.rate is not None else "")
        return Path(self.disk, self.arm.replace(":", "-"), *mixed, bs, f"{job.rw}-{job.iodepth}-{job.numjobs}.json")


def write_tree(store: RunStore, rows: Iterable[Row], directory: Path) -> list[Path]:
    """Write one file for each disk, arm and job with the slices that count, and return their paths.

    Raises ConfigError if the directory has files already, and ResultsError if a raw file does not fit to the journal.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"--fio-plot {directory}: it has files already", hint="name a new or empty directory")
    slices = _slices(store, tuple(rows))
    paths: dict[Path, _Key] = {}
    for key in slices:
        # Some file systems ignore case.
        if (other := paths.setdefault(Path(str(key.path).casefold()), key)) != key:
            raise ResultsError(
                f"{key.path} would be the file of {other.job.id} and of {key.job.id}, or of two modes of one name",
                hint="fio-plot cannot tell them apart; export them as --csv",
            )
    for key in paths.values():
        path = key.path
        found = slices[key]
        versions = ", ".join(dict.fromkeys(document.version for document, _ in found))
        content = merged_document(key.job, [each for _, each in found], versions)
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / path, json.dumps(content, indent=1) + "\n")
    return [directory / key.path for key in paths.values()]


def _slices(store: RunStore, rows: Sequence[Row]) -> dict[_Key, list[tuple[Document, RanSlice]]]:
    """fio's results of the slices that count, by file of the tree."""
    by_raw: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_raw[row.measurement.raw].append(row)
    found: dict[_Key, list[tuple[Document, RanSlice]]] = defaultdict(list)
    for raw, own in by_raw.items():
        if any(row.counts for row in own):
            documents = _read(store.path / raw)
            for row, (document, ran) in zip(own, _matched(raw, own, documents), strict=True):
                # fio-plot shows one fio. What several guests did together is in no output of fio.
                if row.counts and row.job is not None and not row.measurement.of_several:
                    mode = row.cell.mode_detail if row.cell and row.measurement.arm != Place.HOST else None
                    found[_Key(row.disk, row.measurement.arm, mode, row.job)].append((document, ran))
    return found


def _read(path: Path) -> tuple[Document, ...]:
    try:
        return tuple(last_of_each_call(read_documents(read_regular(path, most_bytes=JSON_BYTES), str(path)), str(path)))
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be read: {error.strerror}", hint="--fio-plot needs raw/ of the run; --csv does not"
        ) from None
    except MeasurementError as error:
        raise ResultsError(error.message, hint="restore the file from a backup; --csv does not need it") from None


def _matched(raw: str, rows: Sequence[Row], documents: Sequence[Document]) -> list[tuple[Document, RanSlice]]:
    """The entries of each row in the file. Both are in the order of the slices."""
    groups = [
        (document, tuple(group))
        for document in documents
        for _, group in groupby(document.jobs, key=lambda job: job.groupid)
    ]
    left = [(document, group) for document, group in groups if not is_ramp(group[0].jobname)]
    found = []
    for row in rows:
        first = row.measurement.parts[0] if row.measurement.parts else row.measurement
        fitting = [slice_ for slice_ in left if _figures(slice_[1]) == (first.io_bytes, first.seconds)]
        fitting = fitting or [slice_ for slice_ in left if _is_imported_as(slice_[1], first.io_bytes, first.seconds)]
        if not fitting:
            raise ResultsError(
                f"{raw} has no result with {first.io_bytes} bytes in {first.seconds:g} s, which "
                f"the journal has for {row.measurement.arm}, {row.measurement.job}",
                hint="the files of the run were changed; restore them from a backup",
            )
        found.append(fitting[0])
        left.remove(fitting[0])
    return found


def _is_imported_as(entries: RanSlice, io_bytes: int, seconds: float) -> bool:
    """Whether an import makes these figures of the entries: of writes alone if the reads verify, or of processes that
    started at different times."""
    written = sum(entry.write.io_bytes for entry in entries), max(entry.write.runtime for entry in entries) / 1000
    every, longest = _figures(entries)
    return written == (io_bytes, seconds) or (every == io_bytes and longest < seconds)


def _figures(entries: RanSlice) -> tuple[int, float]:
    """Bytes and seconds of a slice."""
    sides = [side for entry in entries for side in entry.sides]
    return sum(side.io_bytes for side in sides), max((side.runtime for side in sides), default=0) / 1000
