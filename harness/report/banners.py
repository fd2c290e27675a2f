"""What a reader must know before any figure: is the run complete, what is its lab?"""

from __future__ import annotations

from collections.abc import Iterator

from harness.feature import features
from harness.report.blocks import Banner
from harness.report.numbers import count, percent
from harness.results import Run
from harness.results.records import IMPORTED
from harness.units import format_size


def find_banners(run: Run) -> tuple[Banner, ...]:
    """Warnings if the run is incomplete, has results that nothing here reads, judged nothing, had a limit of bytes
    written, its lab is not real hardware, or it has no interval, and those of features."""
    own = (_status, _unknown, _judged, _writes, _lab, _blocks)
    finders = (*own, *(feature.banners for feature in features()))
    return tuple(banner for find in finders for banner in find(run))


def _status(run: Run) -> Iterator[Banner]:
    if run.run.status == "complete":
        return
    titles = {
        "running": "This run has not finished yet",
        "interrupted": "This run was interrupted",
        "failed": "This run failed",
    }
    measured = sum(record.measured for record in run.cells)
    so_far = f"{measured} of {count(len(run.cells), 'cell')} measured; the report shows these."
    if measured == 0 and run.cells:
        so_far = f"None of its {count(len(run.cells), 'cell')} was measured, so there is nothing to compare."
    elif not run.cells:
        so_far = "No cell was measured, so there is nothing to compare."
    cause = f"{' '.join(run.run.cause.split()).rstrip('.')}. " if run.run.cause else ""
    yield Banner("status", titles[run.run.status], cause + so_far)


def _unknown(run: Run) -> Iterator[Banner]:
    if run.unknown:
        yield Banner(
            "unknown",
            "Left out",
            f"results.json has also {', '.join(run.unknown)}, which this installation of virt-overhead cannot show.",
        )


def _judged(run: Run) -> Iterator[Banner]:
    if run.judged is not None and run.judged.why is not None and run.run.status != "running":
        yield Banner("judged", "Nothing was judged", run.judged.why)


def _writes(run: Run) -> Iterator[Banner]:
    for write in run.writes:
        share = f", {percent(write.written / write.endurance)} % of its endurance" if write.endurance else ""
        left_out = f" Left out: {'; '.join(write.left_out)}." if write.left_out else " Nothing was left out."
        yield Banner(
            "writes",
            "Limited writes",
            f"{write.disk}: {format_size(write.written)} written by the disk's own counter{share}; --max-writes="
            f"{run.run.max_writes} allows {format_size(write.limit)}.{left_out}",
        )


def _lab(run: Run) -> Iterator[Banner]:
    if run.lab.imported:
        yield Banner("lab", "Imported", f"{_imported(run)} Host and guest were not measured in alternation.")
    elif not run.lab.representative and any(record.measured for record in run.cells):
        yield Banner(
            "lab",
            "Relative only",
            f"{run.lab.why.rstrip('.')}. Figures compare modes with the host of this lab; "
            "they say nothing about real hardware.",
        )


def _imported(run: Run) -> str:
    """Where the figures of an imported run are from, and which files were left out."""
    origin = run.provenance.get(IMPORTED)
    files = [each for each in origin.values() if isinstance(each, dict)] if isinstance(origin, dict) else []
    left_out = [str(file.get("from")) for file in files if "left out" in file]
    words = f"The figures are from {count(len(files) - len(left_out), 'file')} of another tool ({run.lab.why})."
    return f"{words} Left out, because they cannot be read: {', '.join(left_out)}." if left_out else words


def _blocks(run: Run) -> Iterator[Banner]:
    blocks = [len(record.rounds) for record in run.cells if record.measured]
    if blocks and max(blocks) == 1:
        more = "Import" if run.lab.imported else "Measure"
        yield Banner(
            "blocks",
            "One block",
            "A block is a sample, and the spread of one sample is unknown: no value has an interval, and no "
            f"budget can be judged. {more} at least ten {'results of each arm' if run.lab.imported else 'blocks'}.",
        )
