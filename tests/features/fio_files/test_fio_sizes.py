"""Sizes in options of fio, as the fio of this machine reads them."""

from __future__ import annotations

import json
import subprocess

import pytest

from harness.model.job import parse_fio_size

_SIZES = (
    "4096",
    "4k",
    "4K",
    "4KB",
    "4kB",
    "4ki",
    "4KiB",
    "256ki",
    "1m",
    "1MB",
    "1mi",
    "4kib",
    "512B",
    "0x1000",
    "0X2k",
)


def _block_sizes_of_fio(sizes: tuple[str, ...], kb_base: int) -> list[int]:
    """The mean size of the I/Os of a job with each of these block sizes. The engine `null` touches no disk."""
    common = ("--ioengine=null", "--size=64m", "--rw=read", "--number_ios=8", f"--kb_base={kb_base}", "--stonewall")
    jobs = [word for number, size in enumerate(sizes) for word in (f"--name=job{number}", *common, f"--bs={size}")]
    printed = subprocess.run(["fio", "--output-format=json", *jobs], check=True, capture_output=True, text=True).stdout
    reads = [job["read"] for job in json.loads(printed)["jobs"]]
    return [read["io_bytes"] // read["total_ios"] for read in reads]


@pytest.mark.parametrize("kb_base", [1024, 1000])
def test_a_size_has_the_bytes_that_fio_uses(kb_base: int) -> None:
    assert [parse_fio_size(size, kb_base) for size in _SIZES] == _block_sizes_of_fio(_SIZES, kb_base)


@pytest.mark.parametrize("text", ["", "4.5k", "k", "-4k", "4kx", "4i", "4e3", "(4*1k)", "٤k"])
def test_a_size_that_fio_would_misread_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_fio_size(text)
