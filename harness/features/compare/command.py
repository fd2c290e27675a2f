"""`virt-overhead compare` and `--baseline`: opens runs, compares them, prints the comparison, and has the exit status.

A named baseline is a copy of results.json below the directory of the runs, `reports/baselines/NAME/HOST/results.json`.
It has one run of each host. A copy stays when its run is deleted, and the directory can be moved to another machine,
for example by a CI service.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.config.names import choices, plain_name, spelt_otherwise
from harness.console import CleanConsole
from harness.errors import ConfigError, ResultsError
from harness.feature import SessionRuns
from harness.features.compare.comparison import compare
from harness.features.compare.records import ComparisonOutcome, RunComparison, comparison_json
from harness.features.compare.words import comparison_markdown, describe_outcome, explain_ruled_out, print_comparison
from harness.files import write_atomically, write_page
from harness.lab.transport.base import Overdue, within
from harness.results import Run, RunStore
from harness.terminal import clean_json, hide_password_of, hide_passwords

if TYPE_CHECKING:
    import pytest

_DIRECTORY = "baselines"
_FETCHED = "fetched"
_IS_URL = re.compile(r"https?://", re.IGNORECASE)
_CONNECT_SECONDS, _READ_SECONDS, _WHOLE_SECONDS = 10, 60, 600
_MOST_FETCHED = 64 << 20
"""Bytes of a results.json that is downloaded."""


def set_baseline(reports: Path, name: str, store: RunStore) -> Run:
    """Make the run of `store` the baseline of this name for its host in `reports`, in place of any other. Returns it.

    ConfigError for a name that is not valid, or a run that is not complete; ResultsError if a file cannot be used.
    """
    try:
        plain_name(name)
    except ValueError as error:
        raise ConfigError(f"baseline {name}: {error}", hint="choose another name, for example main") from None
    run, content = store.read_results_and_content()
    if run.run.status != "complete":
        raise ConfigError(
            f"run {run.run.id} is not complete ({run.run.status}), so it cannot be a baseline",
            hint=f"complete it: add --resume={store.path} to the command that measured it; or choose another run",
        )
    if not any(cell.metrics for cell in run.cells):
        raise ConfigError(
            f"run {run.run.id} has no measured cell, so nothing could be compared with it", hint="choose another run"
        )
    path = reports / _DIRECTORY / name / run.lab.host / "results.json"
    _require_distinct(path.parent.parent, f"baseline {name}")
    _require_distinct(path.parent, f"host {run.lab.host}")
    _write(path, content, reports)
    return run


def _write(path: Path, content: bytes, reports: Path) -> None:
    """Write a file below `reports`. Raises ResultsError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"check that this user may write to {reports}, and that there is space",
        ) from error


def _require_distinct(directory: Path, what: str) -> None:
    """Raise ConfigError if a file system that ignores case would take another directory for this one."""
    others = [path.name for path in directory.parent.iterdir()] if directory.parent.is_dir() else []
    if other := spelt_otherwise(directory.name, others):
        raise ConfigError(
            f"{what}: {directory.parent} has {other}, which is the same name in another case",
            hint=f"use the name {other}, or remove {directory.parent / other}",
        )


def find_baseline(reports: Path, name: str, host: str | None = None) -> RunStore:
    """The stored baseline of this name, of this host if it has several. ConfigError if there is none."""
    by_host = {path.parent.name: path for path in list_baselines(reports).get(name, ())}
    if not by_host:
        known = list_baselines(reports)
        raise ConfigError(
            f'no baseline "{name}" in {reports / _DIRECTORY}' + (f"; {choices(name, known)}" if known else ""),
            hint=f"set it with: virt-overhead baseline set {name} RUN",
        )
    if len(by_host) > 1 and host is not None and host not in by_host:
        raise ConfigError(
            f'baseline "{name}" has no run of host {host}; it has runs of: {", ".join(by_host)}',
            hint=f"set it with: virt-overhead baseline set {name} RUN, where RUN is of this host",
        )
    return RunStore.open(by_host.get(host or "", next(iter(by_host.values()))))


def list_baselines(reports: Path) -> dict[str, list[Path]]:
    """By name of the baseline, the results.json of each host."""
    paths: dict[str, list[Path]] = {}
    for path in sorted((reports / _DIRECTORY).glob("*/*/results.json")):
        paths.setdefault(path.parent.parent.name, []).append(path)
    return paths


WORSE = 3
"""The exit status if a figure is worse."""
UNDECIDED = 4
"""The exit status if the comparison decides nothing, and that counts as a failure."""
NOT_COMPARABLE = 5
"""The exit status if a difference rules the comparison out."""

Form = Literal["terminal", "markdown", "json"]


def show_comparison(comparison: RunComparison, metric: str | None, form: Form, page: Path | None) -> None:
    """Print the comparison by `metric`, or by the main one of each job, and write it as a page to `page`.

    ResultsError if the page cannot be written. As JSON, it has all metrics.
    """
    if page is not None:
        from harness.features.compare.page import render_comparison  # noqa: PLC0415 - plotly takes a second to load

        write_page(page, render_comparison(comparison.each, metric))
    if form == "json":
        sys.stdout.write(clean_json(comparison_json(comparison)) + "\n")
    elif form == "markdown":
        sys.stdout.write("\n".join(comparison_markdown(two, metric) for two in comparison.each))
    else:
        for number, two in enumerate(comparison.each):
            sys.stdout.write("\n" if number else "")
            print_comparison(two, metric)
        if page is not None:
            sys.stdout.write(f"\npage: {page}\n")


def decide_status(comparison: RunComparison, inconclusive: Literal["fail", "skip"]) -> int:
    """The exit status for these outcomes: the gravest of them counts."""
    outcomes = {two.outcome for two in comparison.each}
    if ComparisonOutcome.NOT_COMPARABLE in outcomes:
        return NOT_COMPARABLE
    if outcomes & {ComparisonOutcome.WORSE, ComparisonOutcome.MIXED}:
        return WORSE
    return UNDECIDED if ComparisonOutcome.UNDECIDED in outcomes and inconclusive == "fail" else 0


def choose_store(path: Path, reports: Path) -> RunStore:
    """The run at `path`, or of this name in the directory `reports`. Raises ConfigError if there is none."""
    try:
        return RunStore.named(path, reports)
    except ResultsError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def open_run(word: str, reports: Path) -> RunStore:
    """The run that a word of the command line names: by a path, a name in `reports`, or the URL of its results.json.

    Raises ConfigError if there is none.
    """
    return fetch_run(word, reports) if _IS_URL.match(word) else choose_store(Path(word), reports)


def fetch_run(url: str, reports: Path) -> RunStore:
    """The run of the results.json at `url`, which is stored in `reports/fetched`, once for the same content.

    Raises ConfigError, without the password of the URL, if there is none that can be read.
    """
    shown = hide_passwords(url, is_url=True)
    try:
        content = within(_WHOLE_SECONDS, lambda: _download(url, shown))
    except Overdue:
        raise ConfigError(
            f"{shown}: has not arrived after {_WHOLE_SECONDS} s", hint="fetch the file another way, and name its path"
        ) from None
    directory = reports / _FETCHED / hashlib.sha256(content).hexdigest()[:16]
    path = directory / "results.json"
    _write(path, content, reports)
    store = RunStore.open(directory)
    try:
        store.read_results()
    except ResultsError as error:
        shutil.rmtree(directory)
        raise ConfigError(
            error.message.replace(str(store.results_path), shown),
            hint="name the URL of a results.json that this version or an older one wrote, for example "
            "https://host/reports/RUN-ID/results.json",
        ) from error
    return store


def _download(url: str, shown: str) -> bytes:
    import requests  # noqa: PLC0415 - half a second, for URLs only

    content = bytearray()
    try:
        with requests.get(url, timeout=(_CONNECT_SECONDS, _READ_SECONDS), stream=True) as answer:
            answer.raise_for_status()
            for part in answer.iter_content(1 << 16):
                content += part
                if len(content) > _MOST_FETCHED:
                    raise ConfigError(
                        f"{shown}: is larger than {_MOST_FETCHED >> 20} MiB, which is too large for a results.json"
                    )
    except (requests.RequestException, ValueError) as error:
        hint = "name the URL of a results.json, for example https://host/reports/RUN-ID/results.json"
        raise ConfigError(f"{shown}: cannot be read: {hide_password_of(url, str(error))}", hint=hint) from error
    return bytes(content)


def open_runs(words: Sequence[str], reports: Path, baseline: str | None) -> list[Run]:
    """The reference, which is the first run or the baseline, and the runs to compare with it.

    ConfigError for runs that do not exist; ResultsError for files that cannot be used.
    """
    runs = [open_run(word, reports).read_results() for word in words]
    if baseline is not None:
        runs.insert(0, find_baseline(reports, baseline, runs[0].lab.host).read_results())
    if len(runs) < 2:
        raise ConfigError(
            "one run: there is nothing to compare it with", hint="give two runs, or --baseline NAME and a run"
        )
    return runs


FLAG = "--baseline"


def judge_runs(baseline: str, runs: SessionRuns) -> Iterator[tuple[str, str]]:
    """For each run that is worse than the baseline, or cannot be compared with it, why that is a failure."""
    for path in runs.paths:
        name = f"baseline[{baseline}-{path.name}]"
        try:
            comparison = _compare(path, runs.reports, baseline)
        except (ConfigError, ResultsError) as error:
            yield name, f"{FLAG}: {error}"
            continue
        if decide_status(comparison, "fail" if runs.undecided_fails else "skip"):
            yield name, f"{FLAG}={baseline}: {explain_ruled_out(comparison) or describe_outcome(comparison)}"


def print_comparisons(baseline: str, runs: SessionRuns, reporter: pytest.TerminalReporter) -> None:
    """Print how each run differs from the baseline."""
    for path in runs.paths:
        reporter.section(f"compared with the baseline {baseline}")
        try:
            comparison = _compare(path, runs.reports, baseline)
        except (ConfigError, ResultsError) as error:
            reporter.write_line(str(error), red=True)
            continue
        width = 120 if not reporter.isatty() else reporter._tw.fullwidth
        console = CleanConsole(width=width, colours=reporter.hasmarkup)
        with console.capture() as capture:
            print_comparison(comparison, console=console)
        reporter.write(capture.get())


@cache
def _compare(path: Path, reports: Path, baseline: str) -> RunComparison:
    """The complete run against the baseline. It is judged first, and printed later."""
    after = RunStore.open(path).read_results()
    before = find_baseline(reports, baseline, after.lab.host).read_results()
    return compare(before, after, same_machine=True)
