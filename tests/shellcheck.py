"""Checks every shell script of the project with shellcheck: `python -m tests.shellcheck`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def find_scripts() -> Iterator[Path]:
    """The shell scripts among the tracked and new files: by suffix, else by the first line."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".sh", ".bash") or (not path.suffix and path.is_file() and _begins_with_shell(path)):
            yield path


def _begins_with_shell(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline(100).rstrip().endswith((b"/sh", b"/sh -e", b"bash", b"/busybox sh"))


def main() -> int:
    scripts = list(find_scripts())
    posix = [path for path in scripts if path.suffix == ".sh"]
    others = [path for path in scripts if path.suffix != ".sh"]
    done = [
        subprocess.run(["shellcheck", *options, *paths], cwd=ROOT, check=False)
        for options, paths in ((["--shell=dash"], posix), ([], others))
    ]
    return max(check.returncode for check in done)


if __name__ == "__main__":
    sys.exit(main())
