"""docs/calibration.md speaks of every option and every key of the file, and of no others; its figures are true."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from harness.cli import main
from harness.features.calibrate.calibration import BootNoise, Calibration, Conditions, Delay, SliceNoise
from harness.features.calibrate.command import BLOCKS_SHOWN, count_most_by_chance
from harness.features.calibrate.measuring import DELAY_NS, PLAIN_ANSWER_NS, CalibrationSpec
from tests.unit.command_docs import read_command

DOCS = (Path(__file__).parents[3] / "docs" / "calibration.md").read_text(encoding="utf-8")


def test_the_docs_name_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["calibrate", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help", "--debug"}
    assert set(re.findall(r"^\| `(--[a-z]+)", read_command("calibrate"), re.M)) - {"--debug"} == options


def test_the_docs_name_every_key_of_the_file() -> None:
    table = DOCS.partition("| key | what it holds |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert named == {
        field.name for record in (Calibration, Delay, Conditions, SliceNoise, BootNoise) for field in fields(record)
    }


def test_the_docs_name_the_defaults() -> None:
    order = CalibrationSpec()
    for option in ("groups", "rounds", "repetitions", "slices", "boots"):
        value = getattr(order, option)
        assert re.search(rf"^\| `--{option} {option.upper()}` \| .* \({value}\) \|", read_command("calibrate"), re.M)
    assert f"compares them in {order.delay_rounds} blocks" in DOCS
    assert f"{order.boot_rounds} blocks in each boot" in DOCS


def test_the_docs_name_the_numbers_of_blocks() -> None:
    *first, last = map(str, BLOCKS_SHOWN)
    assert f"the overhead that {', '.join(first)} and {last} blocks show" in DOCS


def test_the_docs_name_the_limits_of_chance() -> None:
    order = CalibrationSpec()
    assert f"({count_most_by_chance(order.groups)} in {order.groups} groups)" in DOCS
    least = order.repetitions - count_most_by_chance(order.repetitions)
    assert f"(of {order.repetitions}, fewer than {least})" in DOCS


def test_the_docs_name_the_response_times_of_the_two_disks() -> None:
    plain, late = PLAIN_ANSWER_NS // 10**6, (PLAIN_ANSWER_NS + DELAY_NS) // 10**6
    assert f"answers each request after {plain} ms, the other after {late} ms" in DOCS
