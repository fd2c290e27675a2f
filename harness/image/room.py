"""Space for a build: a scratch directory on a file system with enough space, and the error if there is none."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import LabUnavailable
from harness.files import write_atomically
from harness.image.mode import Mode
from harness.image.recipe import Recipe
from harness.units import format_size

_PREFIX = "virt-overhead-build-"


@contextmanager
def scratch_directory(recipe: Recipe, out: Path, mode: Mode, *, record: Path) -> Iterator[Path]:
    """A directory in which mmdebstrap unpacks, removed afterwards. The file `record` holds its path, for after a crash.

    Raises LabUnavailable if no file system has the space that the recipe needs, there or at `out`.
    """
    if free(out) < recipe.size_bytes:
        raise _no_space(recipe, f"{format_size(recipe.size_bytes)} for the image", [out])
    places = [place for place in _places() if mode == "root" or _open_to_others(place)]
    fitting = [place for place in places if free(place) >= _needed(recipe, place, out)]
    if not fitting:
        raise _no_space(recipe, f"{format_size(recipe.scratch_bytes)} of scratch space", places)
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=fitting[0]))
    write_atomically(record, str(scratch))
    try:
        scratch.chmod(0o755)  # apt drops its privileges, and the user of the namespace is another one
        yield scratch
    finally:
        remove_scratch(scratch)


def remove_scratch(scratch: Path) -> None:
    """Remove a scratch directory, even if a stopped build left files in it that belong to subordinate ids."""
    if not scratch.name.startswith(_PREFIX) or scratch.is_symlink():
        return
    shutil.rmtree(scratch, ignore_errors=True)
    if scratch.exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["unshare", "--map-root-user", "--map-auto", "rm", "-rf", "--one-file-system", str(scratch)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
                check=False,
            )


def too_full(recipe: Recipe, scratch: Path, out: Path, log: Path) -> LabUnavailable:
    """The error for a build that filled a file system."""
    fuller = min((scratch, out), key=free)
    return _no_space(
        recipe, f"{format_size(_needed(recipe, scratch, out))}; the file system ran full (see {log})", [fuller]
    )


def free(path: Path) -> int:
    """Bytes that are free for this user on the file system of `path`."""
    return shutil.disk_usage(path).free


def _needed(recipe: Recipe, place: Path, out: Path) -> int:
    shared = place.stat().st_dev == out.stat().st_dev
    return recipe.scratch_bytes + (recipe.size_bytes if shared else 0)


def _places() -> list[Path]:
    chosen = os.environ.get("TMPDIR")
    candidates = [*([Path(chosen)] if chosen else []), Path("/var/tmp"), Path("/tmp")]
    return [place for place in candidates if place.is_dir() and os.access(place, os.W_OK | os.X_OK)]


def _open_to_others(place: Path) -> bool:
    place = place.resolve()
    return all(step.stat().st_mode & stat.S_IXOTH for step in (place, *place.parents))


def _no_space(recipe: Recipe, needed: str, places: list[Path]) -> LabUnavailable:
    systems = {_mount_point(place): free(place) for place in places}
    found = ", ".join(f"{system} has {format_size(room)} free" for system, room in systems.items())
    return LabUnavailable(
        f"building the {recipe.name} image needs {needed}, but {found or 'there is no temporary directory'}",
        hint="free space there, or set TMPDIR (for the build) and VIRT_OVERHEAD_CACHE (for the images) to other "
        "directories",
    )


def _mount_point(path: Path) -> Path:
    path = path.resolve()
    return next(step for step in (path, *path.parents) if step.is_mount())
