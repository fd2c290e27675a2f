"""Named baselines: copies of results.json below the directory of the runs, `reports/baselines/NAME/HOST/results.json`.

A baseline has one run of each host. A copy stays when its run is deleted, and the directory can be moved to another
machine, for example by a CI service.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.config.names import choices, plain_name, spelt_otherwise
from harness.errors import ConfigError, ResultsError
from harness.files import write_atomically
from harness.results.records import Run
from harness.results.store import RunStore

_DIRECTORY = "baselines"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A named run."""

    name: str
    run: Run


def set_baseline(reports: Path, name: str, store: RunStore) -> Baseline:
    """Make the run of `store` the baseline of this name for its host in `reports`, in place of any other.

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
            hint=f"complete it with: pytest --resume={store.path}; or choose another run",
        )
    path = reports / _DIRECTORY / name / run.lab.host / "results.json"
    _require_distinct(path.parent.parent, f"baseline {name}")
    _require_distinct(path.parent, f"host {run.lab.host}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"check that this user may write to {reports}, and that there is space",
        ) from error
    return Baseline(name, run)


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
