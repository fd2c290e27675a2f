"""docs/reference/coverage.md from the simulations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.bench.coverage.intervals import (
    BLOCKS,
    LEAST,
    LEAST_OF_PERCENTILES,
    MOST,
    WIDEST,
    Intervals,
    PercentileRow,
    Row,
)
from tests.bench.coverage.labels import NARROWEST_OF_T, LabelsRow
from tests.bench.coverage.noises import ARMS, BLOCK_S

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "coverage.md"

_HEAD = f"""\
# How often intervals contain the truth, and how wide they are

For people who check the intervals. `python -m tests.bench.coverage --write` generates this page from simulations of
the functions that ship, and `python -m tests.bench.false_alarms --write` its last part. Do not edit it.
[Statistics](../statistics.md) explains the method.
{{hold}} of {{rows}} rows hold, and {{low}} cover too rarely. The last column names what does not hold.

- *Coverage* is how often a 95 % interval contains the truth. It should be {100 * LEAST:.0f} to {100 * MOST:.0f} %.
- *Width* is the half width of the interval as a multiple of the oracle's, who knows the standard deviation of the
  estimate: 1.96 times this deviation. The first figure is the median, the second one the 90th percentile.
- *Of t* is the median half width as a multiple of that of Student's paired t on the values as measured."""
_NOISES = f"""\
## Noises

Each row is from {{campaigns}} simulated jobs of a host and {ARMS - 1} guests. Their slices follow each other in random
order within a second and a half, and blocks are {BLOCK_S:g} s apart. By chance, the coverage of one comparison deviates
by {{error:.1f}} points (one standard deviation), that of a row, which has several comparisons, by less. The truth is
that of the run: the mean over all of its moments.

With independent noise and 10 or more blocks, the 90th percentile of the width should be at most {WIDEST}. Student's t
itself has 1.47 at 10 blocks, 1.26 at 20 and 1.17 at 40."""
_LONG_RUN = """\
An interval is about the run. Where the loss itself changes in time, another hour may have another loss. How often the
intervals of guest against host contain the mean of a run without end:"""
_BOOTS = """\
## Boots

Each boot has two blocks. The boots of a guest have as much variance as its slices."""
_PERCENTILES = f"""\
## Percentiles

The p99 of a guest as a multiple of its host's, from {{campaigns}} simulated cells in each row. The coverage should be
at least {100 * LEAST_OF_PERCENTILES:.0f} %. The second column has the I/Os of a slice on host and guest. The bias is
the mean error of the estimate."""
_LABELS = f"""\
## Labels of stored runs

Simulated noise is not that of a disk. So the slices of stored runs are used as well: the guests exchange their labels
at random in each block, so that the truth of each comparison of two guests is 0, and the noise and its order in time
are real. The half width should be at most {NARROWEST_OF_T} times that of Student's t."""


def write_page(
    noises: Sequence[Row],
    boots: Sequence[Row],
    percentiles: Sequence[PercentileRow],
    labels: Sequence[LabelsRow],
    campaigns: int,
) -> str:
    """The whole page, in Markdown."""
    failures = [row.failures for part in (noises, boots, percentiles, labels) for row in part]
    low = sum("rarely" in " ".join(of_row) for of_row in failures)
    error = 100 * (0.95 * 0.05 / campaigns) ** 0.5
    cells_of_percentiles = percentiles[0].campaigns if percentiles else 0
    parts = (
        _HEAD.format(rows=len(failures), hold=failures.count([]), low=low),
        _NOISES.format(campaigns=campaigns, error=error),
        tabulate(("noise", "blocks", *_columns(), "holds"), map(_fill_noise, noises)),
        _LONG_RUN,
        tabulate(("noise", *(f"{blocks} blocks" for blocks in BLOCKS)), _fill_long_runs(noises)),
        _BOOTS,
        tabulate(("boots", *_columns(of_t=False), "holds"), map(_fill_boots, boots)),
        _PERCENTILES.format(campaigns=cells_of_percentiles),
        tabulate(
            ("latencies", "I/Os of a slice", "blocks", "coverage", "width", "bias", "holds"),
            map(_fill_percentile, percentiles),
        ),
        _LABELS,
        tabulate(("run", "jobs", "blocks", "guests", "coverage", "width", "of t", "holds"), map(_fill_labels, labels)),
    )
    return "\n\n".join(parts)


FALSE_ALARMS = "## Runs without any difference"
"""The heading of the page's last part."""


def replace_part(page: str, *, coverage: str | None = None, false_alarms: str | None = None) -> str:
    """The page with a new text of one of its parts."""
    before, heading, after = page.partition(FALSE_ALARMS)
    before = before if coverage is None else coverage
    after = after if false_alarms is None else false_alarms
    return f"{before.strip()}\n\n{heading or FALSE_ALARMS}\n\n{after.strip()}".strip() + "\n"


def _fill_noise(row: Row) -> Iterator[str]:
    yield from (row.name, str(row.blocks), *_describe(row.intervals), _judge(row.failures))


def _fill_boots(row: Row) -> Iterator[str]:
    yield from (str(row.blocks), *_describe(row.intervals), _judge(row.failures))


def _fill_long_runs(noises: Sequence[Row]) -> Iterator[Iterable[str]]:
    for name in dict.fromkeys(row.name for row in noises):
        shares = [row.of_long_run for row in noises if row.name == name and row.of_long_run is not None]
        if shares:
            yield name, *map(_percent, shares)


def _fill_percentile(row: PercentileRow) -> Iterator[str]:
    host, guest = row.ios
    yield from (row.name, f"{host} : {guest}", str(row.blocks), *_describe([row.intervals]))
    yield from (f"{100 * row.intervals.bias:+.1f} %", _judge(row.failures))


def _fill_labels(row: LabelsRow) -> Iterator[str]:
    yield from (row.run, str(row.jobs), str(row.blocks), str(row.guests))
    yield from (*_describe([row.intervals]), _judge(row.failures))


def _columns(*, of_t: bool = True) -> Iterator[str]:
    for comparison in ("guest : host", "guest : guest"):
        yield from (f"{comparison}, coverage", "width", *(["of t"] if of_t else []))


def _describe(several: Iterable[Intervals]) -> Iterator[str]:
    for intervals in several:
        yield _percent(intervals.coverage)
        yield f"{intervals.median_width:.2f}, {intervals.wide_width:.2f}"
        if intervals.of_t is not None:
            yield f"{intervals.of_t:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _judge(failures: Sequence[str]) -> str:
    return f"**no**: {', '.join(failures)}" if failures else "yes"


def tabulate(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(columns)
    lines = [" | ".join(columns), "|".join(["---"] * len(columns)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if "---|" not in line else f"|{line}|" for line in lines)
