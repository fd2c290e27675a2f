"""One page for the runs of several hosts: what became of each host, and the figures of all cells."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.files import write_atomically
from harness.report.contents import headline_of
from harness.report.model import ReportView, report_view
from harness.report.numbers import count
from harness.report.terminal import outcome_words, row_values
from harness.results import CellRecord, Outcome, Run, RunStore


@dataclass(frozen=True, slots=True)
class HostView:
    """The run of one host. `page` is the path of its own report."""

    run: Run
    view: ReportView
    page: Path

    @classmethod
    def of(cls, store: RunStore) -> HostView:
        """Raises ResultsError if the run cannot be read."""
        run = store.read_results()
        return cls(run, report_view(run), store.report_path)

    @property
    def host(self) -> str:
        return self.run.lab.host

    @property
    def cells(self) -> list[CellRecord]:
        return [cell for section in self.view.sections for cell in section.cells]

    @property
    def cause(self) -> str:
        """Why it is not complete, in one line; empty if that is not known."""
        return (self.run.run.cause or "").partition("\n")[0]

    @property
    def sentence(self) -> str:
        """For example "node2: complete, 12 cells: 6 within, 6 baseline"."""
        counts = ", ".join(f"{number} {outcome}" for outcome, number in self.view.counts.items())
        cells = f"{count(len(self.run.cells), 'cell')}{f': {counts}' if counts else ''}"
        return f"{self.host}: {self.run.run.status}, {cells}{f'; {self.cause}' if self.cause else ''}"


@dataclass(frozen=True, slots=True)
class HostsView:
    """The runs of several hosts, by the hosts' names."""

    hosts: tuple[HostView, ...]

    @classmethod
    def of(cls, stores: Sequence[RunStore]) -> HostsView:
        """Raises ResultsError if a run cannot be read."""
        return cls(tuple(sorted(map(HostView.of, stores), key=lambda each: (_natural(each.host), each.run.run.id))))

    @property
    def headline(self) -> str:
        """For example "15 of 16 hosts are complete: 180 cells"."""
        complete = sum(host.run.run.status == "complete" for host in self.hosts)
        cells = sum(len(host.run.cells) for host in self.hosts)
        return f"{complete} of {count(len(self.hosts), 'host')} complete: {count(cells, 'cell')}"


def write_hosts_page(view: HostsView, path: Path) -> None:
    """Write the page, which loads no other file, with links to the pages of the runs. Raises OSError."""
    from harness.report.html import environment  # noqa: PLC0415 - plotly takes a second to import

    links = {host.run.run.id: os.path.relpath(host.page, path.parent) for host in view.hosts}
    page = environment().get_template("hosts.html.j2")
    rendered = page.render(
        view=view, links=links, row_values=row_values, words=outcome_words, classes=_CLASSES, headline_of=headline_of
    )
    write_atomically(path, rendered)


_CLASSES = {outcome: outcome.value for outcome in Outcome}
"""The report's colours, by verdict."""


def _natural(name: str) -> tuple[str, int]:
    """Sorts node2 before node10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
