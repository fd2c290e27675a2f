"""Sections of fio that ran at the same time, as one workload, like those of a user's own fio file. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.config.names import LONGEST_NAME
from harness.exchange.section import Section
from harness.model.fio_section import FioOption, FioSection, FromFile
from harness.model.job import Rw, Workload


def together(sections: Sequence[Section]) -> Workload:
    """The workload of several sections, named after them. Raises MeasurementError if one is not supported."""
    label = _label([section.name for section in sections])
    workloads = [section.workload() for section in sections]
    rates = [workload.rate for workload in workloads]
    return Workload(
        _rw(sections),
        max(workload.bs for workload in workloads),
        sum(section.numjobs for section in sections),
        rate=sum(rate for rate in rates if rate is not None) if None not in rates else None,
        label=label,
        iodepths=(max(section.iodepth for section in sections),),
        syncs=all(section.syncs for section in sections),
        poisson=all(workload.poisson for workload in workloads),
        from_file=FromFile(
            f"{label}.fio",
            tuple(_to_model(section) for section in sections),
            saturating=not any(section.is_paced or _flushes(section) for section in sections),
            paced=all(section.is_paced for section in sections),
            flushes=any(_flushes(section) for section in sections),
        ),
    )


def _flushes(section: Section) -> bool:
    return any(section.options.get(name, "0") != "0" for name in ("fsync", "fdatasync"))


def _to_model(section: Section) -> FioSection:
    values = {"ioengine": section.engine, **section.options, "bs": str(section.bs)}
    return FioSection(
        section.name,
        tuple(FioOption(name, value) for name, value in values.items() if value),
        processes=section.numjobs,
        iodepth=section.iodepth,
    )


def _rw(sections: Sequence[Section]) -> Rw:
    """What the sections do together. It is random if one of them is."""
    random = any(section.rw.startswith("rand") for section in sections)
    if not any(section.writes for section in sections):
        return "randread" if random else "read"
    if not any(section.reads for section in sections):
        return "randwrite" if random else "write"
    return "randrw" if random else "rw"


def _label(names: Sequence[str]) -> str:
    """`reader-and-log`, or `reader-and-3` if that is too long."""
    plain = [re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "section" for name in names]
    label = "-and-".join(plain)
    if len(label) > LONGEST_NAME:
        number = f"-and-{len(plain) - 1}"
        label = f"{plain[0][: LONGEST_NAME - len(number)].strip('-')}{number}"
    return label
