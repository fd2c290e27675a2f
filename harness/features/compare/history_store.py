"""Where the history is stored: a directory or an object store with one immutable Parquet file for each run.

Many machines append to it without a lock, because each run is a file of its own, which is created whole or not at all.
A file has a row for each cell and metric, with what identifies and surrounds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from harness.analysis import METRICS
from harness.errors import ConfigError, HarnessError, ResultsError
from harness.feature import SessionRuns
from harness.features.compare.comparability import read_run_facts, read_scenario_facts
from harness.features.export_formats import TypedColumn, Value, parquet_bytes
from harness.files import sync, write_atomically
from harness.report.numbers import count
from harness.results import MetricRecord, Run, RunStore
from harness.results.cells import CellRecord
from harness.terminal import hide_password_of, hide_passwords
from harness.untrusted import CLOCKS_DIFFER_SECONDS

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One metric of one cell of a run. `facts` are those of the run, as JSON, so that they are made once."""

    run: Run
    digest: str
    facts: str
    disk_id: str
    cell: CellRecord
    name: str
    metric: MetricRecord


def make_history_rows(run: Run, digest: str, labels: Mapping[str, str]) -> Iterator[HistoryRow]:
    """The rows of a run whose results.json has this SHA-256. `labels` are further facts, for example a commit."""
    facts = _list_run_facts(run) | {f"label.{name}": value for name, value in labels.items()}
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    for cell in run.cells:
        identity = facts.get(f"{cell.scenario}.disk") or facts.get(f"{cell.scenario}.disk1") or cell.disk
        for name, metric in cell.metrics.items():
            yield HistoryRow(run, digest, text, str(identity), cell, name, metric)


def _mean(place: str) -> TypedColumn[HistoryRow]:
    def of(row: HistoryRow) -> Value:
        values = row.metric.samples(place)
        return geometric_mean(values) if values and min(values) > 0 else None

    return TypedColumn(f"{place}_mean", float, of)


def _overhead(name: str, of_type: type, field: str) -> TypedColumn[HistoryRow]:
    return TypedColumn(name, of_type, lambda row: getattr(row.metric.overhead, field) if row.metric.overhead else None)


HISTORY_COLUMNS: tuple[TypedColumn[HistoryRow], ...] = (
    TypedColumn("run", str, lambda row: row.run.run.id),
    TypedColumn("started", float, lambda row: row.run.run.started),
    TypedColumn("host", str, lambda row: row.run.lab.host),
    TypedColumn("representative", bool, lambda row: row.run.lab.representative),
    TypedColumn("profile", str, lambda row: row.run.run.profile),
    TypedColumn("cell", str, lambda row: row.cell.id),
    TypedColumn("scenario", str, lambda row: row.cell.scenario),
    TypedColumn("disk", str, lambda row: row.cell.disk),
    TypedColumn("disk_id", str, lambda row: row.disk_id),
    TypedColumn("mode", str, lambda row: row.cell.mode),
    TypedColumn("job", str, lambda row: row.cell.job.id),
    TypedColumn("verdict", str, lambda row: row.cell.verdict.value),
    TypedColumn("metric", str, lambda row: row.name),
    TypedColumn("main", bool, lambda row: row.name == row.cell.job.headline),
    TypedColumn("unit", str, lambda row: row.metric.unit),
    TypedColumn("better", str, lambda row: row.metric.better),
    _mean("host"),
    _mean("twin"),
    _mean("guest"),
    _overhead("overhead", float, "point"),
    _overhead("overhead_low", float, "low"),
    _overhead("overhead_high", float, "high"),
    _overhead("n", int, "n"),
    TypedColumn("facts", str, lambda row: row.facts),
    TypedColumn("digest", str, lambda row: row.digest),
)
"""The columns of the history, in their order."""


_YEAR_2000 = 946_684_800.0
"""A machine without a battery for its clock begins in 1970, or when its firmware was made."""
_EXTRA = "history"
_AS_ADDED = "each .parquet file there must be one that `virt-overhead history add` wrote, with its name"
_WRONG = """
SELECT filename, CASE WHEN sound THEN run END FROM (
  SELECT filename, run, coalesce(isfinite(started) AND list_contains($metrics, metric), false)
    AND coalesce(isfinite(overhead), true) AND coalesce(isfinite(host_mean), true)
    AND coalesce(isfinite(twin_mean), true) AND coalesce(isfinite(guest_mean), true) AS sound
  FROM read_parquet({}, filename = true)
) WHERE NOT sound OR run IS NULL OR parse_filename(filename, true) <> run LIMIT 1
"""
"""A file with a value that no run has, or that is a copy: its run would count twice."""


class HistoryStore:
    """The Parquet files at a URL of fsspec (`s3://bucket/history`), or in a directory."""

    def __init__(self, filesystem: Any, directory: str, url: str) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.url = hide_passwords(url, is_url=True)
        self._whole_url = url

    @classmethod
    def at(cls, url: str) -> Self:
        """The history at this URL or in this directory, which may not exist yet.

        Raises ConfigError if fsspec, or its package for this kind of URL, is not installed.
        """
        try:
            import fsspec  # noqa: PLC0415 - an optional dependency
        except ModuleNotFoundError:
            raise _missing("fsspec") from None
        try:
            with _explain_failures(url, except_for=(ImportError, ValueError)):
                filesystem, directory = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"--store {hide_passwords(url, is_url=True)}: {hide_password_of(url, str(error))}",
                hint="give a directory, or a URL of fsspec whose package is installed, for example s3fs for s3://",
            ) from error
        return cls(filesystem, directory.rstrip("/"), url)

    def add(self, store: RunStore, labels: Mapping[str, str]) -> bool:
        """Add a run; False if it is there already. `labels` are further facts of the run.

        Raises ConfigError for a run that is not complete, or another run with the same id; ResultsError if a file
        cannot be read or written.
        """
        run, content = store.read_results_and_content()
        if run.run.status != "complete":
            raise ConfigError(
                f"run {run.run.id} is not complete ({run.run.status}), so it is not added to the history",
                hint=f"complete it: add --resume={store.path} to the command that measured it",
            )
        future = run.run.started > time.time() + CLOCKS_DIFFER_SECONDS
        if future or run.run.started < _YEAR_2000:
            began = time.strftime("%Y-%m-%d", time.gmtime(run.run.started))
            when, place = ("in the future", "newest") if future else ("by a clock that was not set", "oldest")
            raise ConfigError(
                f"run {run.run.id} began on {began}, {when}, so it is not added to the history: it would stay the "
                f"{place} run",
                hint="set the clock of the machine that measured it, or of this one, whichever is wrong; measure again",
            )
        digest = hashlib.sha256(content).hexdigest()
        rows = list(make_history_rows(run, digest, labels))
        if not rows:
            raise ConfigError(f"run {run.run.id} has no measured cell, so it is not added to the history")
        data = parquet_bytes(rows, HISTORY_COLUMNS, needed_for="history", extra=_EXTRA)
        path = f"{self._directory}/{run.run.id}.parquet"
        try:
            with self._reached():
                self._create(path, data)
        except FileExistsError:
            with self._reached():
                stored = self._digest(path)
            if stored != digest:
                raise ConfigError(
                    f"{path} has another run with the id {run.run.id}, or this run before it was changed",
                    hint="the history never changes a run that it has; delete that file if it is wrong",
                ) from None
            return False
        return True

    def query(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a query of DuckDB on the table `history`, which has `HISTORY_COLUMNS`.

        Raises ConfigError if DuckDB is not installed or there is no run, and ResultsError if a file cannot be read.
        """
        try:
            import duckdb  # noqa: PLC0415 - an optional dependency
        except ModuleNotFoundError:
            raise _missing("duckdb") from None
        with self._reached():
            pattern = self._pattern()
        with self._reached(), duckdb.connect() as connection:
            if not self._is_local:
                connection.register_filesystem(self._filesystem)
            try:
                connection.execute(f"CREATE VIEW history AS SELECT * FROM read_parquet({_quote(pattern)})")
                wrong = connection.execute(_WRONG.format(_quote(pattern)), {"metrics": [*METRICS]}).fetchone()
                rows: list[tuple[Any, ...]] = [] if wrong else connection.execute(sql, dict(parameters)).fetchall()
            except duckdb.Error as error:
                raise ResultsError(
                    f"the history in {self.url} cannot be read: {hide_password_of(self._whole_url, str(error))}",
                    hint=_AS_ADDED,
                ) from error
        if wrong:
            path, run = wrong
            why = f"it has run {run}, whose file has another name" if run else "it has values that no run has"
            raise ResultsError(f"{hide_passwords(path)} cannot be used: {why}", hint=_AS_ADDED)
        return rows

    def _reached(self) -> AbstractContextManager[None]:
        return _explain_failures(self._whole_url)

    @property
    def _is_local(self) -> bool:
        return "file" in _list_protocols(self._filesystem)

    def _pattern(self) -> str:
        """The files as DuckDB reads them. ConfigError if there are none."""
        if not self._filesystem.glob(f"{self._directory}/*.parquet"):
            if self._is_local and os.path.lexists(self._directory):
                list(Path(self._directory).iterdir())  # glob finds nothing where it may not read, or in a file.
            raise ConfigError(
                f"the history in {self.url} has no run", hint="add runs with: virt-overhead history add RUN --store=URL"
            )
        path = f"{self._directory}/*.parquet"
        return path if self._is_local else f"{_list_protocols(self._filesystem)[0]}://{path.lstrip('/')}"

    def _create(self, path: str, data: bytes) -> None:
        """Create the file whole or not at all. FileExistsError if it exists, also since a moment ago."""
        if not self._is_local:
            self._filesystem.pipe_file(path, data, mode="create")
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A link never replaces a file, as a rename would.
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
        write_atomically(part, data)
        try:
            os.link(part, target)
            sync(target.parent)
        finally:
            part.unlink()

    def _digest(self, path: str) -> str | None:
        from pyarrow import parquet  # noqa: PLC0415

        try:
            with self._filesystem.open(path, "rb") as file:
                digests: list[str] = parquet.read_table(file, columns=["digest"]).column("digest").to_pylist()
        except ValueError as error:
            raise ResultsError(
                f"{hide_passwords(path)} cannot be read: {error}",
                hint="delete that file if a run was written there only in part, and add the run again",
            ) from None
        return digests[0] if digests else None


@contextmanager
def _explain_failures(url: str, *, except_for: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise ResultsError for every failure of the store in this block: each kind of store has errors of its own."""
    try:
        yield
    except (HarnessError, FileExistsError):
        raise
    except except_for:
        raise
    except Exception as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        why = hide_password_of(url, text) or type(error).__name__
        raise ResultsError(
            f"the history in {hide_passwords(url, is_url=True)} cannot be used: {why}",
            hint="check the URL, whether it can be reached, whether this user may write there, and the free space",
        ) from None


def _list_protocols(filesystem: Any) -> tuple[str, ...]:
    protocols = filesystem.protocol
    return (protocols,) if isinstance(protocols, str) else tuple(protocols)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _missing(package: str) -> ConfigError:
    return ConfigError(
        f"history needs {package}, which is not installed", hint=f"run: pip install 'virt-overhead[{_EXTRA}]'"
    )


def _list_run_facts(run: Run) -> dict[str, JsonValue]:
    """The facts of a run that may affect its values, by name: lab, versions, settings, and each scenario's disks."""
    scenarios = dict.fromkeys(cell.scenario for cell in run.cells)
    of_scenarios = {
        f"{name}.{key}": value for name in scenarios for key, value in read_scenario_facts(run, name).items()
    }
    return read_run_facts(run) | of_scenarios


def add_runs(url: str, runs: SessionRuns, reporter: pytest.TerminalReporter) -> None:
    """Add the complete runs to the history; the others are named with the reason."""
    if not runs.paths:
        return
    added = 0
    for path in runs.paths:
        try:
            added += HistoryStore.at(url).add(RunStore.open(path), {})
        except (ConfigError, ResultsError) as error:
            reporter.write_line(f"not added to the history: {error}", red=True)
            remedy = f"virt-overhead history add {path} --store=URL"
            reporter.write_line(f"  the run itself is stored; to add it later: {remedy}")
    total = count(len(runs.paths), "run")
    reporter.write_line(f"history {hide_passwords(url, is_url=True)}: {added} of {total} added")
