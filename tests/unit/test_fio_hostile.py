"""Any input in place of fio's output is read or is a MeasurementError, without a traceback and within limits."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import MeasurementError
from harness.measure.fio import JobResult, Target, TimedSection, parse
from harness.model.job import Job

RECORDED = (Path(__file__).parent / "data" / "fio" / "three_jobs.json").read_text()
RANDREAD = Job("randread", 4096, iodepth=8, ramp=0.5, seconds=1)
JOBS = [
    RANDREAD,
    Job("write", 256 * 1024, iodepth=2, ramp=0, seconds=1),
    Job("randrw", 8192, iodepth=4, ramp=0, seconds=1, numjobs=2, read_share=0.67),
]
MIB = 1 << 20
SECTIONS = [TimedSection(job.id, job, Target("/dev/x", 0, 24 * MIB, direct=True)) for job in JOBS]


def outcome(text: str) -> list[JobResult] | str:
    """The results, or the message of the error. Any other error fails the test."""
    try:
        results = parse(text, SECTIONS, "guest on lab, optane")
    except MeasurementError as error:
        said = error.message
        assert said.startswith("guest on lab, optane: fio")
        assert len(said) < 1000
        return said
    for result in results:
        assert all(isinstance(value, float) and math.isfinite(value) for value in result.metrics.values())
        assert all(isinstance(value, int) for pair in result.histogram.items() for value in pair)
    return results


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED[RECORDED.index("{") :])
    return found


def test_the_recording_itself_is_read() -> None:
    assert len(outcome(RECORDED)) == len(JOBS)


def test_output_cut_off_anywhere_is_an_error() -> None:
    end = RECORDED.rindex("}")
    for cut in {*range(0, end, 97), *range(end - 200, end + 1)}:
        assert isinstance(outcome(RECORDED[:cut]), str), cut


@pytest.mark.parametrize(
    "text",
    [
        '{"jobs":' * 100_000,
        "[" * 100_000,
        '{"jobs": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"jobs": [{"jobname": ' + '{"a":' * 70 + "1" + "}" * 70 + "}]}",
    ],
    ids=["objects", "lists", "lists that end", "70 levels"],
)
def test_deep_nesting_is_an_error(text: str) -> None:
    assert isinstance(outcome(text), str)


def test_nesting_is_named() -> None:
    assert "nested more than 64 levels deep" in outcome('{"jobs": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_a_large_document_is_refused_before_it_takes_memory() -> None:
    text = '{"jobs": [' + "[]," * (12 * MIB) + "[]]}"
    tracemalloc.start()
    try:
        said = outcome(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "fio's output has 36 MiB; the limit is 16 MiB" in said
    assert peak < MIB


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("NaN", "NaN is not a finite number"),
        ("-Infinity", "-Infinity is not a finite number"),
        ("1e999", "1e999 is not a finite number"),
        ("9" * 5000, "cannot be read"),
        ("1" + "0" * 400, "cannot be read: job randread-4k-qd8"),
        ('"many"', "cannot be read: job randread-4k-qd8"),
        ("[1]", "cannot be read: job randread-4k-qd8"),
        ("-1", "cannot be read: job randread-4k-qd8"),
        ("null", "cannot be read: job randread-4k-qd8"),
        ("true", "cannot be read: job randread-4k-qd8"),
    ],
)
@pytest.mark.parametrize(
    "path",
    ["read.total_ios", "read.io_bytes", "read.clat_ns.mean", "read.runtime", "read.iops", "ctx", "usr_cpu"],
)
def test_a_value_that_is_not_a_number_is_an_error(path: str, value: str, said: str) -> None:
    changed = document()
    *parents, key = path.split(".")
    holder = next(entry for entry in changed["jobs"] if entry["jobname"] == RANDREAD.id)
    for parent in parents:
        holder = holder[parent]
    holder[key] = "@value@"
    assert said in outcome(json.dumps(changed).replace('"@value@"', value))


def test_a_text_in_place_of_a_mean_is_never_multiplied_by_the_number_of_ios() -> None:
    changed = document()
    for entry in changed["jobs"]:
        for side in ("read", "write"):
            entry[side]["total_ios"] = 1 << 40
            entry[side]["clat_ns"]["mean"] = "a"
    assert "clat_ns.mean: Input should be a valid number" in outcome(json.dumps(changed))


@pytest.mark.parametrize("text", [RECORDED.replace('"', "\0", 5), "\0" * 1000, RECORDED.replace("read", "\udcff", 3)])
def test_bytes_that_are_not_text_are_an_error(text: str) -> None:
    assert isinstance(outcome(text), str)


def test_output_changed_at_random_is_read_or_an_error() -> None:
    chance = random.Random(10)
    changes = [_change_text, _cut_piece, _repeat_piece, _change_value, _change_value, _drop_key]
    outcomes = {type(outcome(chance.choice(changes)(chance))) for _ in range(1500)}
    assert outcomes == {list, str}


def _change_text(chance: random.Random) -> str:
    at = chance.randrange(len(RECORDED))
    return RECORDED[:at] + chance.choice('{}[]",:0\0\x1b9-e.\\n \ud800') + RECORDED[at + 1 :]


def _cut_piece(chance: random.Random) -> str:
    start, end = sorted(chance.randrange(len(RECORDED)) for _ in range(2))
    return RECORDED[:start] + RECORDED[end:]


def _repeat_piece(chance: random.Random) -> str:
    start, end = sorted(chance.randrange(len(RECORDED)) for _ in range(2))
    return RECORDED[:end] + RECORDED[start:]


def _change_value(chance: random.Random) -> str:
    strange: list[Callable[[], Any]] = [
        lambda: None,
        lambda: -1,
        lambda: 10**400,
        lambda: 1e308,
        lambda: "text",
        list,
        dict,
        lambda: {"a": "b"},
        lambda: [[1]],
        lambda: True,
        lambda: 0,
    ]

    def change(holder: Any, key: Any) -> None:
        holder[key] = chance.choice(strange)()

    return _at_random(chance, change)


def _drop_key(chance: random.Random) -> str:
    def drop(holder: Any, key: Any) -> None:
        del holder[key]

    return _at_random(chance, drop)


def _at_random(chance: random.Random, change: Callable[[Any, Any], None]) -> str:
    changed = document()
    holder: Any = changed
    key: Any = "jobs"
    while isinstance(holder[key], dict | list) and holder[key] and chance.random() < 0.85:
        holder = holder[key]
        key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    change(holder, key)
    return json.dumps(changed)


def claimed(**factors: float) -> str:
    """The outcome if fio claims these figures of the reads of its first job times a factor."""
    found = document()
    entry = next(job for job in found["jobs"] if job["jobname"] == RANDREAD.id)
    for name, factor in factors.items():
        place = entry["read"]["clat_ns"] if name == "mean" else entry["read"]
        place[name] = type(place[name])(place[name] * factor)
    said = outcome(json.dumps(found))
    assert isinstance(said, str)
    return said


def test_figures_that_contradict_ios_and_time_are_refused_by_the_name_of_the_machine() -> None:
    assert f"guest on lab, optane: fio's job {RANDREAD.id}: iops = " in claimed(iops=100)
    assert "bw_bytes = " in claimed(bw_bytes=100)
    assert "its I/Os and its time make" in claimed(total_ios=100)
    assert "its I/Os and its time make" in claimed(runtime=0.01)
    assert "clat_ns mean = " in claimed(mean=0.01)


def test_figures_that_fit_together_must_fit_to_the_job_and_to_the_time_as_well() -> None:
    assert "were requested" in claimed(runtime=0.01, iops=100, bw_bytes=100)
    assert "its histogram has" in claimed(total_ios=100, iops=100, io_bytes=100, bw_bytes=100)
    shallow = TimedSection(RANDREAD.id, replace(RANDREAD, iodepth=1), SECTIONS[0].target)
    with pytest.raises(MeasurementError, match="I/Os were in flight by its latency and IOPS, but it allows 1"):
        parse(RECORDED, [shallow], "guest on lab, optane")
    with pytest.raises(MeasurementError, match=r"fio ran for at most 0\.1 s"):
        parse(RECORDED, SECTIONS, "guest on lab, optane", within=0.1)
