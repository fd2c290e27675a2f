"""Recorded outputs of fio of several versions, and runs that are imported from them.

`fio-VERSION.json` and `fio-VERSION-plus.json` are as fio printed them with --output-format=json and json+. `bench-fio`
is a tree as bench-fio writes it, without its logs. `own-*` are two blocks of a run of virt-overhead in the embedded
lab.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.cli import main
from harness.results import Run, RunStore

RECORDED = Path(__file__).parent / "data"
BENCH_FIO = RECORDED / "bench-fio"
VERSIONS = ("3.16", "3.28", "3.33", "3.36", "3.41")


def fio_file(name: str) -> Path:
    return RECORDED / f"fio-{name}.json"


def document(path: Path) -> dict[str, Any]:
    """fio's document in the file, without notes before it."""
    text = path.read_text()
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return found


def import_here(*arguments: str | Path) -> int:
    """Run `virt-overhead import` in the working directory, and return its exit status."""
    return main(["import", *map(str, arguments)])


def imported() -> RunStore:
    """The newest run of the working directory."""
    return RunStore.open(Path("reports/latest"))


def import_bench_fio() -> Run:
    """The run of the tree of bench-fio: two results of two jobs, on the host and in the guest `lvm`."""
    assert import_here("--host", BENCH_FIO / "host", "--guest", f"lvm={BENCH_FIO / 'guest'}", "--disk", "ssd") == 0
    return imported().read_results()
