"""Exports a stored run: its measurements as a table, and fio's results as a tree for fio-plot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import ConfigError
from harness.exchange.fio_plot import write_tree
from harness.exchange.request import ExportRequest
from harness.exchange.rows import rows_of
from harness.exchange.tables import write_csv, write_parquet
from harness.results import RunStore


def export_run(request: ExportRequest) -> list[str]:
    """Write the requested forms, and return a line about each.

    Raises ConfigError if none is requested or one cannot be written, and ResultsError if the run cannot be read.
    """
    if request.csv is None and request.parquet is None and request.fio_plot is None:
        raise ConfigError("nothing to export", hint="add --csv FILE, --parquet FILE or --fio-plot DIR")
    store = RunStore.open(request.run)
    journal = store.read_journal()
    rows = rows_of(store.read_results(), journal)
    done = list(journal.notes)
    for path, write in ((request.csv, write_csv), (request.parquet, write_parquet)):
        if path is not None:
            with _writing(path):
                write(rows, path)
            done.append(f"{len(rows)} measurements: {path}")
    if request.fio_plot is not None:
        valid = [row for row in rows if not row.void]
        with _writing(request.fio_plot):
            files = write_tree(store, valid, request.fio_plot)
        done.append(f"{len(files)} files for fio-plot: {request.fio_plot}")
        void = dict.fromkeys(row.cell.id for row in rows if row.void and row.cell)
        done += [f"{cell} is void: left out of the files for fio-plot" for cell in void]
    return done


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"check that {path.parent} exists and has space, and that this user may write there",
        ) from error
