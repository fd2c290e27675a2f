"""Sizes, rates, durations and shares: what people write, what is refused, and what people read."""

from __future__ import annotations

import random

import pytest

from harness.units import (
    format_duration,
    format_size,
    parse_added,
    parse_duration,
    parse_rate,
    parse_share,
    parse_size,
    short_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4k", 4096),
        ("4K", 4096),
        ("256 KiB", 256 * 1024),
        ("1.5 MiB", 1536 * 1024),
        ("64 GiB", 64 * 1024**3),
        (" 2t ", 2 * 1024**4),
    ],
)
def test_a_size_is_read_as_fio_reads_it(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["64 GB", "64gb", "4 kB", "1 TB"])
def test_a_decimal_looking_size_is_refused_with_the_unit_to_write(text: str) -> None:
    letter = text.strip("0123456789 ")[0].upper()
    with pytest.raises(ValueError, match=rf"ambiguous; allowed: {letter}iB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "k", "-4k", "4 x", "1e3", "4k 4k", "\u0664k", "9" * 400])
def test_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid size"):
        parse_size(text)


def test_a_size_is_less_than_what_a_kernel_counts() -> None:
    assert parse_size("8388607 TiB") == 8388607 * 1024**4
    with pytest.raises(ValueError, match="allowed: less than 8388608 TiB"):
        parse_size("8388608 TiB")


def test_a_size_is_a_whole_number_of_bytes() -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_size("0.3k")


@pytest.mark.parametrize(("text", "rate"), [("2 GiB/s", 2 * 1024**3), ("500 MiB/s", 500 * 1024**2), ("4k/s", 4096)])
def test_a_rate_is_a_size_per_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2 GB/s", "allowed: GiB"),
        ("2 GiB", "not a valid rate"),
        ("2 GiB/second", "not a valid rate"),
        ("/s", "not a valid size"),
    ],
)
def test_text_that_is_not_a_rate_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 us", 1e-5), ("10 µs", 1e-5), ("1.5 s", 1.5), ("2 min", 120), ("0 s", 0), ("1h", 3600)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["10", "", "ten s", "-1 s", "1 month"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="for example 10 us or 30 s"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "share"), [("30 %", 0.3), ("2.5%", 0.025), (" 0 % ", 0), ("400 %", 4)])
def test_a_share_is_written_in_percent(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "0.3", "30", "-5 %", "30 percent", "1e1 %"])
def test_a_share_without_a_percent_sign_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid share; allowed: a number and %, for example 30 %"):
        parse_share(text)


@pytest.mark.parametrize(("text", "seconds"), [("+50 us", 5e-5), ("+ 1.5 ms", 1.5e-3), (" +2s", 2), ("+0 us", 0)])
def test_an_added_duration_has_a_plus(text: str, seconds: float) -> None:
    assert parse_added(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("50 us", r"allowed: \+"),
        ("", r"allowed: \+"),
        ("-50 us", r"allowed: \+"),
        ("+50", "not a valid duration"),
        ("++1 s", "not a valid duration"),
    ],
)
def test_text_that_is_not_an_added_duration_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_added(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-9, "1 ns"),
        (0.000213, "213 us"),
        (0.0009996, "1 ms"),
        (0.0042, "4.2 ms"),
        (0.9999, "1 s"),
        (59.96, "60 s"),
        (95, "1 min 35 s"),
        (60, "1 min"),
        (70, "1 min 10 s"),
        (3599.7, "1 h"),
        (4200, "1 h 10 min"),
        (20700, "5 h 45 min"),
        (-0.002, "-2 ms"),
    ],
)
def test_a_duration_reads_well(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_no_duration_is_written_with_an_exponent() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        assert "e+" not in format_duration(10 ** rng.uniform(-9, 6))


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (64 * 1024**2, "64 MiB"), (1.5 * 1024**3, "1.5 GiB")]
)
def test_a_size_reads_well(size: float, text: str) -> None:
    assert format_size(size) == text


def test_the_short_form_of_a_size_means_the_same_size() -> None:
    rng = random.Random(2)
    for _ in range(500):
        size = rng.randrange(1, 4096) * 1024 ** rng.randrange(4)
        assert parse_size(short_size(size)) == size
