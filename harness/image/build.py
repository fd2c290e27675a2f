"""Builds the image of one recipe with mmdebstrap, as root or as another user."""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.errors import LabUnavailable
from harness.image.mode import require_mode
from harness.image.recipe import Recipe
from harness.image.room import scratch_directory, too_full
from harness.signals import cleaning_up, held_back, interruptible
from harness.units import format_duration

DEADLINE_S = 1800.0
_STOP_SECONDS = 30.0

# The list comes from the packages that apt fetched, because an extracted root has no dpkg database.
_LIST_PACKAGES = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do '
    "dpkg-deb -W --showformat='${Package} ${Version}\\n' \"$deb\" || exit 1; "
    'done >"$1/out/packages"'
)

_REMEDIES = (
    (
        r"Temporary failure resolving|Could not (?:connect|resolve)|Unable to fetch|Failed to fetch|Network is unreach",
        "make the Debian archive reachable; set http_proxy if this network needs a proxy",
    ),
    (
        r"NO_PUBKEY|not signed|is not available because the public key",
        "apt-get install --only-upgrade debian-archive-keyring",
    ),
    (r"(?m)^E: .*(?:unshare|newuidmap|newgidmap)", "user namespaces do not seem to work here; build once as root"),
)


def build(
    recipe: Recipe, takes: Mapping[str, Path], staging: Path, out: Path, log: Path, *, deadline: float = DEADLINE_S
) -> None:
    """Build `recipe` into the directory `out`. `takes` are the files that come from other images.

    `staging` is an empty directory for the input files. mmdebstrap's output goes to `log`. Raises LabUnavailable with
    the reason and the remedy. After an error, partial results are removed, also from the scratch space.
    """
    if platform.machine() != "x86_64":
        raise LabUnavailable(f"the images are for x86_64, but this machine is {platform.machine()}")
    mode = require_mode()
    sources = [*_stage(recipe, staging), *takes.values()]
    with scratch_directory(recipe, out, mode, record=staging / "scratch") as scratch:
        keyring = _readable(takes[recipe.keyring], scratch) if recipe.keyring else None
        command = _command(recipe, mode, sources, out, keyring)
        status = _run(command, scratch=scratch, log=log, what=f"the {recipe.name} image", deadline=deadline)
        if status != 0:
            raise _failure(recipe, status, log, scratch, out)
    _unpack(out)
    missing = [name for name in recipe.outputs if not (out / name).is_file()]
    if missing:
        raise LabUnavailable(
            f"the build of the {recipe.name} image did not create {', '.join(missing)}; see {log}",
            hint=f"images/{recipe.name}/build must write it to /out",
        )


def _unpack(out: Path) -> None:
    """Unpack sparse files. Each comes out of the build in a separate archive, NAME.tar, which contains NAME."""
    for archive in out.glob("*.img.tar"):
        done = subprocess.run(
            ["tar", "-C", str(out), "-xSf", str(archive)], capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode != 0:
            raise LabUnavailable(f"cannot unpack {archive.name} into {out}: {done.stderr.strip()}")
        archive.unlink()


def _stage(recipe: Recipe, staging: Path) -> list[Path]:
    contents = dict(recipe.files)
    if recipe.authorized_key:
        contents["authorized_keys"] = f"{recipe.authorized_key}\n".encode()
    for name, content in contents.items():
        (staging / name).write_bytes(content)
    return [staging / name for name in sorted(contents)]


def _readable(keyring: Path, scratch: Path) -> Path:
    """A copy of the keyring that apt's own user can read, who may not enter the cache."""
    copy = scratch / keyring.name
    copy.write_bytes(keyring.read_bytes())
    copy.chmod(0o644)
    return copy


def _command(recipe: Recipe, mode: str, sources: list[Path], out: Path, keyring: Path | None) -> list[str]:
    # mmdebstrap's own hooks copy the files in and out. They work outside of its user namespace, so it does not matter
    # if other users may not enter the home directory.
    copied = shlex.join(str(source) for source in sources)
    hooks = [
        'mkdir -p "$1/recipe" "$1/out"',
        *([_LIST_PACKAGES] if recipe.variant == "extract" else []),
        f"copy-in {copied} /recipe",
        'chroot "$1" sh /recipe/build',
        *(['sh "$1/recipe/pack" "$1"'] if "pack" in recipe.files else []),
        f"sync-out /out {shlex.quote(str(out))}",
    ]
    when = "extract" if recipe.variant == "extract" else "customize"
    return [
        "mmdebstrap",
        f"--mode={mode}",
        f"--variant={recipe.variant}",
        f"--components={','.join(recipe.components)}",
        *([f"--keyring={keyring}"] if keyring is not None else []),
        f"--include={','.join(recipe.packages)}",
        *(f"--{when}-hook={hook}" for hook in hooks),
        "--format=null",
        recipe.suite,
        os.devnull,
        *recipe.archives,
    ]


def _run(command: list[str], *, scratch: Path, log: Path, what: str, deadline: float) -> int:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # mke2fs is there, but not every user's PATH has it
    environment = {**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8", "PATH": path}
    with held_back(), log.open("wb") as output:
        output.write(f"$ {shlex.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",  # mmdebstrap's other user may have no access to the current directory
            start_new_session=True,
        )
        try:
            with interruptible():
                return process.wait(timeout=deadline)
        except subprocess.TimeoutExpired:
            _stop(process)
            raise LabUnavailable(
                f"building {what} took more than {format_duration(deadline)} and was stopped; " + _last_lines(log),
                hint="find out what keeps the machine or the network busy, and start again",
            ) from None
        except BaseException:
            with cleaning_up():
                _stop(process)
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End mmdebstrap and its children. On SIGTERM, mmdebstrap removes its files."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            pass
        return


def _failure(recipe: Recipe, status: int, log: Path, scratch: Path, out: Path) -> LabUnavailable:
    text = log.read_text(errors="replace")
    if "No space left on device" in text:
        return too_full(recipe, scratch, out, log)
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, text)), None)
    return LabUnavailable(
        f"mmdebstrap could not build the {recipe.name} image (status {status}); {_last_lines(log)}", hint=hint
    )


def _last_lines(log: Path, count: int = 12) -> str:
    lines = log.read_text(errors="replace").splitlines()[1:]
    return f"the end of {log}:\n" + "\n".join(f"     {line}" for line in lines[-count:])
