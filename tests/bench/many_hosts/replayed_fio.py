"""The `fio` of a simulated host: it waits as fio does, and then prints what a real fio once printed, for as many I/Os.

`replayed_fio.py RECORDED --output-format=json+ -`: RECORDED has the entries of a real run for `host` and `guest`. The
slices of one machine never overlap, so they are run one after the other. It uses few modules, because each simulated
host starts one for each timetable on this machine.
"""

import json
import os
import sys
import time
from typing import Any

_NOISE = 0.04
"""How far the speed of a slice is from the recorded one at most, as a share."""
_DEPTH = 32
"""The requests in flight of the recorded fio. As many IOPS with fewer in flight mean that each is faster."""
_UPTIME = time.CLOCK_BOOTTIME


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes long to load
        recorded = json.load(file)
    common, jobs = _sections(sys.stdin.read())
    seed = int(common.get("randseed", "0"))
    waiting = [(name, job) for name, job in jobs if "exec_prerun" in job]
    entries = [_run(name, job, recorded, _noise(seed, number)) for number, (name, job) in enumerate(waiting)]
    json.dump({"fio version": "fio-3.39", "jobs": entries}, sys.stdout, indent=1)


def _sections(text: str) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """The options of the section `global`, and those of the others with their names."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if line.startswith("["):
            found.append((line[1:-1], {}))
        elif line:
            name, _, value = line.partition("=")
            found[-1][1][name] = value
    return found[0][1], found[1:]


def _noise(seed: int, number: int) -> float:
    """A factor near 1. The module `random` takes longer to load than all that this program does."""
    state = (seed + number * 0x9E3779B9) % 2**32
    for _ in range(4):
        state = (1664525 * state + 1013904223) % 2**32
    return 1 + _NOISE * (2 * state / 2**32 - 1)


def _run(name: str, job: dict[str, str], recorded: dict[str, Any], noise: float) -> dict[str, Any]:
    # The harness's own script waits for the start, in the directory in which fio runs.
    command = job["exec_prerun"].removeprefix("exec ").split()
    os.spawnvp(os.P_WAIT, command[0], command)
    started, seconds = time.clock_gettime(_UPTIME), int(job["runtime"].removesuffix("ms")) / 1000
    time.sleep(seconds)
    entry: dict[str, Any] = json.loads(json.dumps(recorded["guest" if "-guest-" in name else "host"]))
    share = seconds / (entry["read"]["runtime"] / 1000) * noise
    bs, side = int(job["bs"]), entry["read"]
    ios = round(side["total_ios"] * share)
    side |= {
        "total_ios": ios,
        "io_bytes": ios * bs,
        "bw_bytes": round(ios * bs / seconds),
        "iops": ios / seconds,
        "runtime": round(seconds * 1000),
    }
    faster = _DEPTH / int(job["iodepth"])
    for latency in ("slat_ns", "clat_ns", "lat_ns"):
        side[latency]["mean"] /= noise * faster
    bins = side["clat_ns"]["bins"]
    side["clat_ns"]["bins"] = {str(round(int(latency) / faster)): round(n * share) for latency, n in bins.items()}
    if "write" in job["rw"]:
        entry["read"], entry["write"] = entry["write"], side
    entry |= {"jobname": name, "job_start": round(started * 1000), "job_runtime": round(seconds * 1000)}
    return entry


if __name__ == "__main__":
    main()
