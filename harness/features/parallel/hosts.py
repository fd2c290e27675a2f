"""One page for the runs of several hosts: what became of each host, and the figures of all cells."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.feature import SessionRuns
from harness.files import write_atomically
from harness.report.blocks import Block, Box, Column, Heading, Row, Sentence, Table, TableCell, make_table
from harness.report.contents import find_banners, headline_of
from harness.report.numbers import count
from harness.report.page import render_page
from harness.report.section import find_sections, outcome_counts
from harness.report.terminal import outcome_words, row_values
from harness.results import Run, RunStore


@dataclass(frozen=True, slots=True)
class HostReport:
    """The run of one host. `page` is the path of its own report."""

    run: Run
    page: Path

    @property
    def host(self) -> str:
        return self.run.lab.host

    @property
    def cause(self) -> str:
        """Why it is not complete, in one line; empty if that is not known."""
        return (self.run.run.cause or "").partition("\n")[0]

    @property
    def outcomes(self) -> str:
        """For example "6 within, 6 baseline"."""
        return ", ".join(f"{number} {outcome}" for outcome, number in outcome_counts(self.run.cells).items())

    @property
    def result(self) -> str:
        """Why it is not complete, or its answers."""
        return self.cause or "; ".join(headline_of(section).sentence for section in find_sections(self.run))

    @property
    def sentence(self) -> str:
        """For example "node2: complete, 12 cells: 6 within, 6 baseline"."""
        cells = f"{count(len(self.run.cells), 'cell')}{f': {self.outcomes}' if self.outcomes else ''}"
        return f"{self.host}: {self.run.run.status}, {cells}{f'; {self.cause}' if self.cause else ''}"


def print_hosts(runs: SessionRuns, reporter: pytest.TerminalReporter) -> None:
    """For several runs: a line for each host, and one page with all cells, beside the directories of the runs."""
    try:
        hosts = read_hosts([RunStore.open(path) for path in runs.paths])
        page = runs.paths[0].parent / f"hosts-{min(path.name for path in runs.paths)}.html"
        write_hosts_page(hosts, page)
    except (ResultsError, OSError) as error:
        reporter.write_line(f"the page of all hosts cannot be written: {error}", red=True)
        return
    reporter.section(hosts_headline(hosts))
    for host in hosts:
        reporter.write_line(host.sentence)
    reporter.write_line(f"report of all hosts: {page}")


def read_hosts(stores: Sequence[RunStore]) -> tuple[HostReport, ...]:
    """The runs of several hosts, by the hosts' names. Raises ResultsError if a run cannot be read."""
    hosts = (HostReport(store.read_results(), store.report_path) for store in stores)
    return tuple(sorted(hosts, key=lambda host: (_natural(host.host), host.run.run.id)))


def hosts_headline(hosts: Sequence[HostReport]) -> str:
    """For example "15 of 16 hosts complete: 180 cells"."""
    complete = sum(host.run.run.status == "complete" for host in hosts)
    cells = sum(len(host.run.cells) for host in hosts)
    return f"{complete} of {count(len(hosts), 'host')} complete: {count(cells, 'cell')}"


def write_hosts_page(hosts: Sequence[HostReport], path: Path) -> None:
    """Write the page, which loads no other file, with links to the pages of the runs. Raises OSError."""
    headline = hosts_headline(hosts)
    links = {host.run.run.id: os.path.relpath(host.page, path.parent) for host in hosts}
    header = (
        Heading(headline, level=1),
        Sentence(
            "Each host is compared with itself. Figures of different hosts are beside each other here, and are not "
            "ranked: to compare runs, use `virt-overhead compare`.",
            style="basis",
        ),
    )
    title, kicker = f"{headline} \N{MIDDLE DOT} virt-overhead", ("virt-overhead", "several hosts, one run each")
    write_atomically(path, render_page(title, kicker, header, _main_blocks(hosts, links), scripted=False))


def _main_blocks(hosts: Sequence[HostReport], links: Mapping[str, str]) -> Iterator[Block]:
    table = make_table(
        enumerate(hosts, start=1),
        "What became of each host",
        (Column("host", "head"), lambda item: TableCell(item[1].host, link=f"#host-{item[0]}")),
        (Column("run", "text"), lambda item: TableCell(item[1].run.run.id, link=links[item[1].run.run.id])),
        (Column("status", "text"), lambda item: item[1].run.run.status),
        (Column("cells", "text"), lambda item: item[1].outcomes),
        (Column("result", "sentence"), lambda item: item[1].result),
        style="glance",
        caption_shown=True,
    )
    yield Box((Heading("Hosts", level=2), table))
    for number, host in enumerate(hosts, start=1):
        content: tuple[Block, ...] = (Heading(host.host, level=2), *find_banners(host.run), _cell_table(host))
        yield Box(content, key=f"host-{number}")


def _cell_table(host: HostReport) -> Table:
    names = ("host", "guest", "unit", "overhead %", "n", "added us")
    rows = []
    for section in find_sections(host.run):
        for cell in section.all_cells:
            host_value, guest_value, *figures = row_values(cell)
            verdict = TableCell(outcome_words(cell), tone=cell.outcome)
            rows.append(Row((cell.id, host_value, guest_value, cell.headline_unit, *figures, verdict)))
    return Table(
        (Column("cell", "head"), *map(Column, names), Column("verdict", "text")),
        tuple(rows),
        f"The cells of {host.host}; the overhead in percent with its interval",
        style="glance",
        caption_shown=True,
    )


def _natural(name: str) -> tuple[str, int]:
    """Sorts node2 before node10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
