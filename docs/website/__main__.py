"""Build the site into the directory of the first argument. A warning of Sphinx is an error."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from docs.website.pages import write_source
from harness.report.html import write_report
from harness.results import RunStore

ROOT = Path(__file__).parents[2]


def main(target: str) -> int:
    """The exit status of Sphinx."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory)
        write_source(ROOT, source)
        options = ["--builder=html", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet", "--fresh-env"]
        status = int(build_main([*options, f"--conf-dir={Path(__file__).parent}", str(source), target]))
        for results in (source / "gallery").glob("*/results.json"):
            write_report(RunStore.open(results))
        shutil.copytree(source / "gallery", Path(target, "gallery"), dirs_exist_ok=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
