"""What `virt-overhead report` needs: reading the stored run, and making its page."""

from __future__ import annotations

from harness.report.html import write_report
from harness.results import RunStore
from tests.bench.scale.figures import Clock, Figures, peak_bytes, workplace
from tests.bench.scale.matrix import PROFILE, workloads
from tests.build import RUN_ID, synthetic_run


def figures(cells: int) -> Figures:
    """Of one report. The page of a small run was made before, so that imports do not count."""
    with workplace() as reports:
        small = RunStore.create(reports, RUN_ID)
        small.write_results(synthetic_run(profile=PROFILE, workloads=workloads(1)))
        write_report(small)
        store = RunStore(small.path)
        clock = Clock()
        run = synthetic_run(profile=PROFILE, workloads=workloads(cells))
        assembling, clock = clock.cpu, Clock()
        store.write_results(run)
        writing, clock = clock.cpu, Clock()
        store.read_results()
        reading, clock = clock.cpu, Clock()
        page = write_report(store)
        wall, cpu = clock.wall, clock.cpu
        sizes = [path.stat().st_size / 1024**2 for path in (store.results_path, page)]
    details = (
        f"results.json: {sizes[0]:.1f} MiB, index.html: {sizes[1]:.1f} MiB; CPU s of reading: {reading:.2f}",
        f"before it, CPU s of assembling the run: {assembling:.2f}, of writing results.json: {writing:.2f}",
    )
    return Figures(len(run.cells), wall, cpu, peak_bytes(), details)
