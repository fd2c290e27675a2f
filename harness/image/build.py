"""The recipes in images/, and the build of one with mmdebstrap, as root or in a user namespace."""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Literal

from harness.errors import ConfigError, LabUnavailable
from harness.files import family_of, os_ids, shipped, write_atomically
from harness.signals import cleaning_up, held_back, wait_until
from harness.units import format_duration, format_size

SUITE = "trixie"

BUILD_VERSION = 1
"""Increase it when harness/image/build.py changes how it treats a recipe."""

_MIB = 1 << 20
_COMPONENTS = ("main",)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one image is built.

    `files` are the contents of images/NAME except `packages`. `takes` maps each file from another image to that image's
    recipe. `outputs` are the files that the build must create. `scratch_bytes` and `size_bytes` are the space that it
    needs during the build and in the cache. `expected_s` is the duration of the first build in seconds. `components`
    are the parts of the archive with the packages. `archives` are lines of apt's sources.list, which replace the
    default archive of the suite. `keyring` is the one of `takes` with the keys of the archive, if it is not Debian's.
    """

    name: str
    variant: Literal["extract", "minbase"]
    packages: tuple[str, ...]
    files: Mapping[str, bytes]
    outputs: tuple[str, ...]
    takes: Mapping[str, Recipe] = field(default_factory=dict)
    authorized_key: str = ""
    scratch_bytes: int = 600 * _MIB
    size_bytes: int = 100 * _MIB
    expected_s: float = 20.0
    suite: str = SUITE
    components: tuple[str, ...] = _COMPONENTS
    archives: tuple[str, ...] = ()
    keyring: str = ""

    @property
    def digest(self) -> str:
        """sha256, hexadecimal. It does not include package versions, which depend on the day of the build."""
        digest = hashlib.sha256()
        parts = [
            ("recipe", f"{BUILD_VERSION} {self.suite} {self.variant}".encode()),
            ("packages", "\n".join(sorted(self.packages)).encode()),
            ("authorized_key", self.authorized_key.encode()),
            *(("file " + name, content) for name, content in sorted(self.files.items())),
            *((f"takes {name} from", base.digest.encode()) for name, base in sorted(self.takes.items())),
            # Only other ones: images that were built before recipes had these fields are still those of their recipes.
            *([("components", " ".join(self.components).encode())] if self.components != _COMPONENTS else []),
            *(("archive", archive.encode()) for archive in self.archives),
        ]
        for label, content in parts:
            digest.update(f"{label} {len(content)}\n".encode() + content)
        return digest.hexdigest()


def load_recipes(public_key: str, directory: Path | None = None) -> tuple[Recipe, Recipe, Recipe, Recipe]:
    """fio, guest, emulator and lab: each after the recipes whose files it uses. ConfigError if a recipe is missing."""
    directory = directory or shipped("images")
    fio = Recipe(
        "fio",
        "extract",
        *_read_recipe(directory / "fio"),
        outputs=("fio.tar", "syncload"),
        size_bytes=10 * _MIB,
        expected_s=10.0,
    )
    guest = Recipe(
        "guest",
        "extract",
        *_read_recipe(directory / "guest"),
        outputs=("vmlinuz", "initramfs", "guest.iso", "host_key.pub"),
        takes={"fio.tar": fio},
        authorized_key=public_key,
        scratch_bytes=900 * _MIB,
        expected_s=20.0,
    )
    emulator = Recipe(
        "emulator",
        "extract",
        *_read_recipe(directory / "emulator"),
        outputs=("ld-linux-x86-64.so.2", "qemu-system-x86_64", "bios-256k.bin", "linuxboot_dma.bin", "kvmvapic.bin"),
        scratch_bytes=500 * _MIB,
        size_bytes=80 * _MIB,
        expected_s=15.0,
    )
    lab = Recipe(
        "lab",
        "minbase",
        *_read_recipe(directory / "lab"),
        outputs=("vmlinuz", "initramfs", "root.img", "host_key.pub"),
        takes={"fio.tar": fio},
        authorized_key=public_key,
        scratch_bytes=2300 * _MIB,
        size_bytes=600 * _MIB,
        expected_s=70.0,
    )
    return fio, guest, emulator, lab


def _read_recipe(directory: Path) -> tuple[tuple[str, ...], dict[str, bytes]]:
    try:
        files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        lines = files.pop("packages").decode().splitlines()
        if "build" not in files:
            raise KeyError("build")
    except (OSError, KeyError, UnicodeDecodeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{directory} is not an image recipe: {why}",
            hint="install the package again, or restore the directory in the checkout; see docs/images.md",
        ) from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#")), files


_PREFIX = "virt-overhead-build-"


@contextmanager
def scratch_directory(recipe: Recipe, out: Path, mode: Mode, *, record: Path) -> Iterator[Path]:
    """A directory in which mmdebstrap unpacks, removed afterwards. The file `record` holds its path, for after a crash.

    Raises LabUnavailable if no file system has the space that the recipe needs, there or at `out`.
    """
    if count_free_bytes(out) < recipe.size_bytes:
        raise _describe_shortage(recipe, f"{format_size(recipe.size_bytes)} for the image", [out])
    places = [place for place in _find_places() if mode == "root" or _open_to_others(place)]
    fitting = [place for place in places if count_free_bytes(place) >= _count_needed(recipe, place, out)]
    if not fitting:
        raise _describe_shortage(recipe, f"{format_size(recipe.scratch_bytes)} of scratch space", places)
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


def explain_full_disk(recipe: Recipe, scratch: Path, out: Path, log: Path) -> LabUnavailable:
    """The error for a build that filled a file system."""
    fuller = min((scratch, out), key=count_free_bytes)
    return _describe_shortage(
        recipe, f"{format_size(_count_needed(recipe, scratch, out))}; the file system ran full (see {log})", [fuller]
    )


def count_free_bytes(path: Path) -> int:
    """Bytes that are free for this user on the file system of `path`."""
    return shutil.disk_usage(path).free


def has_space(recipes: Sequence[Recipe], out: Path) -> bool:
    """Whether the file systems have the space to build all of these at the same time, at `out` and for scratch."""
    scratch, size = sum(recipe.scratch_bytes for recipe in recipes), sum(recipe.size_bytes for recipe in recipes)
    together = replace(recipes[0], scratch_bytes=scratch, size_bytes=size)
    fits = any(count_free_bytes(place) >= _count_needed(together, place, out) for place in _find_places())
    return fits and count_free_bytes(out) >= together.size_bytes


def _count_needed(recipe: Recipe, place: Path, out: Path) -> int:
    shared = place.stat().st_dev == out.stat().st_dev
    return recipe.scratch_bytes + (recipe.size_bytes if shared else 0)


def _find_places() -> list[Path]:
    chosen = os.environ.get("TMPDIR")
    candidates = [*([Path(chosen)] if chosen else []), Path("/var/tmp"), Path("/tmp")]
    return [place for place in candidates if place.is_dir() and os.access(place, os.W_OK | os.X_OK)]


def _open_to_others(place: Path) -> bool:
    place = place.resolve()
    return all(step.stat().st_mode & stat.S_IXOTH for step in (place, *place.parents))


def _describe_shortage(recipe: Recipe, needed: str, places: list[Path]) -> LabUnavailable:
    systems = {_mount_point(place): count_free_bytes(place) for place in places}
    rooms = ", ".join(f"{system} has {format_size(room)} free" for system, room in systems.items())
    return LabUnavailable(
        f"building the {recipe.name} image needs {needed}, but {rooms or 'there is no temporary directory'}",
        hint="free space there, or set TMPDIR (for the build) and VIRT_OVERHEAD_CACHE (for the images) to other "
        "directories",
    )


def _mount_point(path: Path) -> Path:
    path = path.resolve()
    return next(step for step in (path, *path.parents) if step.is_mount())


Mode = Literal["root", "unshare"]

_IDS_NEEDED = 65536


_IMPORT = "on a Debian or Ubuntu machine: virt-overhead images export; then here: virt-overhead images import FILE"


def require_mode(*, etc: Path = Path("/etc"), uid: int | None = None) -> Mode:
    """The mode of mmdebstrap for this user. Raises LabUnavailable, which says what to install or to set up."""
    uid = os.geteuid() if uid is None else uid
    programs = {"mmdebstrap": "mmdebstrap", "apt-get": "apt", "mke2fs": "e2fsprogs"}
    if uid != 0:
        programs["newuidmap"] = "uidmap"
    # mke2fs is in /usr/sbin, which is not in every user's PATH. The build adds it as well.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = {program: package for program, package in programs.items() if not shutil.which(program, path=path)}
    if missing:
        ids = os_ids(etc / "os-release")
        if ids and family_of(ids) != "debian":
            raise LabUnavailable(
                f"images are built with mmdebstrap and apt, on Debian and Ubuntu only, and this is {ids.split()[0]}",
                hint=f"{_IMPORT} (docs/images.md)",
            )
        packages = sorted({*missing.values(), "debian-archive-keyring"})
        raise LabUnavailable(
            f"images cannot be built here without {', '.join(missing)}",
            hint=f"apt-get install {' '.join(packages)}, or run ./quickstart",
        )
    if uid == 0:
        return "root"
    user = pwd.getpwuid(uid).pw_name
    for name in ("subuid", "subgid"):
        if _count_granted(etc / name, user, uid) < _IDS_NEEDED:
            raise LabUnavailable(
                f"user {user} needs {_IDS_NEEDED} subordinate ids in {etc / name} to build without root",
                hint=f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
                " (a range that no other line has); or build once as root",
            )
    switch = Path("/proc/sys/kernel/unprivileged_userns_clone")
    if switch.exists() and switch.read_text().strip() == "0":
        raise LabUnavailable(
            "this machine allows only root to create user namespaces, and building without root needs one",
            hint="as root: sysctl kernel.unprivileged_userns_clone=1; or build once as root",
        )
    return "unshare"


def _count_granted(table: Path, user: str, uid: int) -> int:
    """The size of the largest range of subordinate ids that `user` has."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return 0
    ranges = [line.split(":") for line in lines if line.count(":") == 2]
    return max((int(count) for owner, _, count in ranges if owner in {user, str(uid)} and count.isdigit()), default=0)


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
    recipe: Recipe, takes: Mapping[str, Path], work: Path, log: Path, stopped: Event, *, deadline: float = DEADLINE_S
) -> None:
    """Build `recipe` into the directory `out` of `work`. `takes` are the files that come from other images.

    The directory `in` of `work` is for the input files. mmdebstrap's output goes to `log`. Raises LabUnavailable with
    the reason and the remedy, also if `stopped` is set meanwhile. After an error, partial results are removed, also
    from the scratch space.
    """
    if platform.machine() != "x86_64":
        raise LabUnavailable(f"the images are for x86_64, but this machine is {platform.machine()}")
    staging, out, mode = work / "in", work / "out", require_mode()
    sources = [*_stage(recipe, staging), *takes.values()]
    with scratch_directory(recipe, out, mode, record=staging / "scratch") as scratch:
        keyring = _make_readable(takes[recipe.keyring], scratch) if recipe.keyring else None
        command = _make_command(recipe, mode, sources, out, keyring)
        what = f"the {recipe.name} image"
        status = _run(command, scratch=scratch, log=log, what=what, deadline=deadline, stopped=stopped)
        if status != 0:
            raise _explain_failure(recipe, status, log, scratch, out)
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


def _make_readable(keyring: Path, scratch: Path) -> Path:
    """A copy of the keyring that apt's own user can read, who may not enter the cache."""
    copy = scratch / keyring.name
    copy.write_bytes(keyring.read_bytes())
    copy.chmod(0o644)
    return copy


def _make_command(recipe: Recipe, mode: str, sources: list[Path], out: Path, keyring: Path | None) -> list[str]:
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


def _run(command: list[str], *, scratch: Path, log: Path, what: str, deadline: float, stopped: Event) -> int:
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
            wait_until(lambda: process.poll() is not None or stopped.is_set(), deadline=deadline, every=0.1)
            if process.returncode is not None:
                return process.returncode
            why = "was stopped" if stopped.is_set() else f"took more than {format_duration(deadline)} and was stopped"
            raise LabUnavailable(
                f"building {what} {why}; {_read_last_lines(log)}",
                hint="find out what keeps the machine or the network busy, and start again",
            )
        finally:
            with cleaning_up():
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End mmdebstrap and its children, if it still runs. On SIGTERM, mmdebstrap removes its files."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            pass
        return


def _explain_failure(recipe: Recipe, status: int, log: Path, scratch: Path, out: Path) -> LabUnavailable:
    text = log.read_text(errors="replace")
    if "No space left on device" in text:
        return explain_full_disk(recipe, scratch, out, log)
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, text)), None)
    return LabUnavailable(
        f"mmdebstrap could not build the {recipe.name} image (status {status}); {_read_last_lines(log)}", hint=hint
    )


def _read_last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[1:]
    return f"the end of {log}:\n" + "\n".join(f"     {line}" for line in lines[-12:])
