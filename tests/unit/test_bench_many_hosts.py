"""The fio of a simulated host follows the harness: it waits in its command, and prints figures that fio could have."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bench.many_hosts.hosts import install_fio


@pytest.mark.parametrize("depth", [1, 32])
def test_a_simulated_fio_waits_for_its_start_and_has_no_more_in_flight_than_its_depth(
    tmp_path: Path, depth: int
) -> None:
    install_fio(tmp_path)
    (tmp_path / "wait_until").write_text("echo $1 >waited\n")
    job = {"exec_prerun": "exec sh wait_until 4711", "runtime": "20ms", "bs": "4096", "rw": "randwrite"}
    lines = ["[global]", "randseed=7", "[1-host-job]", *(f"{key}={value}" for key, value in job.items())]
    fio = subprocess.run(
        [tmp_path / "programs" / "fio", "--output-format=json+", "-"],
        input="\n".join([*lines, f"iodepth={depth}"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (entry,) = json.loads(fio.stdout)["jobs"]
    assert (tmp_path / "waited").read_text() == "4711\n"
    side = entry["write"]
    assert side["iops"] * side["lat_ns"]["mean"] / 1e9 == pytest.approx(depth, rel=0.1)
