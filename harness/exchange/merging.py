"""Merges fio's results of several slices of one job into one document like fio's own. Pure.

Slices ran one after the other: their bytes, I/Os and times add up. Processes of one slice ran at the same time: the
longest time counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any

from harness.analysis import merged
from harness.analysis.metrics import QUANTILES
from harness.exchange.document import ReportedDirection, ReportedJob, Spread
from harness.model.job import Job
from harness.units import short_size

RanSlice = tuple[ReportedJob, ...]
"""fio's entries for one slice: one, or one for each process."""
_Side = Callable[[ReportedJob], ReportedDirection]
_Weighted = Sequence[tuple[Mapping[str, float], int]]


def merged_document(job: Job, slices: Sequence[RanSlice], version: str) -> dict[str, Any]:
    """The document with one job, for the slices of one arm and job."""
    every = [entry for slice_ in slices for entry in slice_]
    sides: dict[str, _Side] = {"read": lambda entry: entry.read, "write": lambda entry: entry.write}
    ios = [entry.read.total_ios + entry.write.total_ios for entry in every]
    times = [entry.job_runtime for entry in every]
    buckets = ("latency_ns", "latency_us", "latency_ms")
    entry = {
        "jobname": job.id,
        "groupid": 0,
        "error": 0,
        "job options": _options(job),
        **{name: _direction(slices, side) for name, side in sides.items()},
        "job_runtime": sum(max(entry.job_runtime for entry in slice_) for slice_ in slices),
        "usr_cpu": _mean([entry.usr_cpu for entry in every], times),
        "sys_cpu": _mean([entry.sys_cpu for entry in every], times),
        "ctx": sum(entry.ctx for entry in every),
        **{name: _shares([(getattr(e, name), n) for e, n in zip(every, ios, strict=True)]) for name in buckets},
    }
    return {"fio version": version, "global options": {}, "jobs": [entry]}


def _options(job: Job) -> dict[str, str]:
    options = {"rw": job.rw, "bs": short_size(job.bs), "iodepth": str(job.iodepth), "numjobs": str(job.numjobs)}
    if job.read_share is not None:
        options["rwmixread"] = f"{job.read_share * 100:.0f}"
    if job.rate is not None:
        options["rate_iops"] = str(job.rate // job.numjobs)
    return options


def _direction(slices: Sequence[RanSlice], side: _Side) -> dict[str, Any]:
    by_slice = [[side(entry) for entry in slice_] for slice_ in slices]
    every = [each for several in by_slice for each in several]
    runtime = sum(max(each.runtime for each in several) for several in by_slice)
    io_bytes, ios = sum(each.io_bytes for each in every), sum(each.total_ios for each in every)
    rates = [sum(each.iops for each in several) for several in by_slice]
    bw_bytes = round(io_bytes / runtime * 1000) if runtime else 0
    counts = [each.total_ios for each in every]
    return {
        "io_bytes": io_bytes,
        "io_kbytes": io_bytes // 1024,
        "bw_bytes": bw_bytes,
        "bw": bw_bytes // 1024,
        "iops": ios / runtime * 1000 if runtime else 0.0,
        "iops_min": min(rates),
        "iops_max": max(rates),
        "iops_mean": sum(rates) / len(rates),
        "iops_stddev": stdev(rates) if len(rates) > 1 else 0.0,
        "iops_samples": len(rates),
        "runtime": runtime,
        "total_ios": ios,
        "slat_ns": _latency([each.slat_ns for each in every], counts),
        "clat_ns": _latency([each.clat_ns for each in every], counts),
        "lat_ns": _latency([each.lat_ns for each in every], counts),
    }


def _latency(several: Sequence[Spread], counts: Sequence[int]) -> dict[str, Any]:
    """Their mean and standard deviation weighted by I/Os, and the percentiles of the merged histograms."""
    known = [(each, count) for each, count in zip(several, counts, strict=True) if count]
    if not known:
        return {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}
    total = sum(count for _, count in known)
    mean = sum(each.mean * count for each, count in known) / total
    variance = sum(count * (each.stddev**2 + (each.mean - mean) ** 2) for each, count in known) / total
    found: dict[str, Any] = {
        "min": min(each.min for each, _ in known),
        "max": max(each.max for each, _ in known),
        "mean": mean,
        "stddev": math.sqrt(variance),
        "N": total,
    }
    if all(each.bins for each, _ in known):
        bins = merged(each.bins for each, _ in known)
        found["percentile"] = _percentiles(bins)
        found["bins"] = {str(latency): bins[latency] for latency in sorted(bins)}
    return found


def _percentiles(bins: Mapping[int, int]) -> dict[str, int]:
    """The percentiles in ns, by fio's keys, as fio has them: also where only a few I/Os are beyond them."""
    found: dict[str, int] = {}
    total, below = sum(bins.values()), 0
    ranks = [(quantile, math.ceil(quantile * total - 1e-9)) for quantile in QUANTILES]
    for latency in sorted(bins):
        before, below = below, below + bins[latency]
        found |= {f"{quantile * 100:.6f}": latency for quantile, rank in ranks if before < rank <= below}
    return found


def _mean(values: Iterable[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0


def _shares(several: _Weighted) -> dict[str, float]:
    """The percentages by bucket, weighted by I/Os."""
    keys = dict.fromkeys(key for shares, _ in several for key in shares)
    weights = [count for _, count in several]
    return {key: _mean([shares.get(key, 0.0) for shares, _ in several], weights) for key in keys}
