"""Matrices of a given number of cells: five modes, nine depths, and more workloads than anyone needs."""

from __future__ import annotations

import math
from itertools import islice, product

from tests.build import optane

PROFILE = "standard"
SIZES = ("512", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1m", "2m", "4m", "8m", "16m")
PATTERNS = ("randread", "seqread", "randwrite", "seqwrite")
MOST_JOBS = 64


def workloads(cells: int) -> list[str]:
    """The names of the fewest workloads that have so many cells."""
    scenario = optane()
    depths = next(profile.iodepth for profile in scenario.profiles if profile.name == PROFILE)
    number = math.ceil(cells / len(scenario.modes) / len(depths))
    every = product(range(1, MOST_JOBS + 1), SIZES, PATTERNS)
    return [f"{pattern}-{size}" + (f"-nj{jobs}" if jobs > 1 else "") for jobs, size, pattern in islice(every, number)]


def scenario_file(cells: int) -> str:
    """A scenario file of about so many cells."""
    scenario = optane()
    return f"""
title = "{cells} cells"
disk = "{scenario.disk}"
modes = {[mode.name for mode in scenario.modes]}
workloads = {workloads(cells)}
write_rate = "2 GiB/s"

[[budget]]
metric = "iops"
share = "10 %"
"""
