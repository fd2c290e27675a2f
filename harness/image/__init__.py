"""The images of a lab, built from the recipes in images/ and stored in the user's cache, which is always complete."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Self, cast

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from harness.errors import ConfigError, LabUnavailable
from harness.events import Events, Note
from harness.files import move, read_regular, why_exchangeable
from harness.image.build import Recipe, has_space, load_recipes, remove_scratch
from harness.image.build import build as build_with_mmdebstrap
from harness.image.keys import ensure_key
from harness.image.manifest import DamagedError, Manifest, record_file
from harness.image.manifest import check as check_files
from harness.image.manifest import read as read_manifest
from harness.image.manifest import write as write_manifest
from harness.signals import held_back, interruptible

IMAGES_PER_NAME = 2
BUILDS_AT_ONCE = 2
_WATCH_SECONDS = 0.5
_LOCK_SECONDS = 3600.0
_BUILDING = ".building-"
_RETIRED = ".retired-"
_PRIVATE = 0o700
"""The mode of an image's directory. The images of guest and lab contain private host keys."""


@dataclass(frozen=True, slots=True)
class Image:
    """A built image: files in `path`, described by `manifest`. `digest` identifies exactly this build."""

    name: str
    digest: str
    path: Path
    manifest: Manifest

    @property
    def vmlinuz(self) -> Path:
        return self.path / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.path / "initramfs"


@dataclass(frozen=True, slots=True)
class GuestImage(Image):
    """The guest: kernel and initramfs, or the two as a bootable ISO."""

    @property
    def iso(self) -> Path:
        return self.path / "guest.iso"


@dataclass(frozen=True, slots=True)
class LabImage(Image):
    """The lab host: kernel, initramfs and a root disk, which must be used with a snapshot on top."""

    @property
    def root(self) -> Path:
        return self.path / "root.img"


@dataclass(frozen=True, slots=True)
class EmulatorImage(Image):
    """QEMU, the same on every machine: the image has its loader and its libraries."""

    @property
    def command(self) -> list[str]:
        """The command that starts QEMU. QEMU's own arguments follow it."""
        here = str(self.path)
        return [f"{here}/ld-linux-x86-64.so.2", "--library-path", here, f"{here}/qemu-system-x86_64", "-L", here]


_KINDS: Mapping[str, type[Image]] = {"guest": GuestImage, "lab": LabImage, "emulator": EmulatorImage}


def choose_cache() -> Path:
    """VIRT_OVERHEAD_CACHE, else the user's cache directory."""
    chosen = os.environ.get("VIRT_OVERHEAD_CACHE")
    return Path(chosen).absolute() if chosen else user_cache_path("virt-overhead")


@dataclass(frozen=True, slots=True)
class Missing:
    """The cache has no usable image. `damage` says what is wrong with the stored one, if there is one."""

    damage: str | None = None


class Cache:
    """Images in `root`/images/NAME-DIGEST12, each with a log NAME-DIGEST12.log in the same directory."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "images"

    def path(self, recipe: Recipe) -> Path:
        return self.directory / f"{recipe.name}-{recipe.digest[:12]}"

    def log(self, recipe: Recipe) -> Path:
        return self.directory / f"{self.path(recipe).name}.log"

    def find(self, recipe: Recipe, bases: Mapping[str, Image], *, thorough: bool = False) -> Image | Missing:
        """The image of `recipe` if it exists, is complete, and was built from these `bases` (images by name).

        Raises ConfigError if another user could exchange it.
        """
        path = self.path(recipe)
        self._require_own(path)
        if not path.exists():
            return Missing()
        try:
            manifest = read_manifest(path)
            if (manifest.name, manifest.recipe_digest) != (recipe.name, recipe.digest):
                raise DamagedError(f"its manifest belongs to {manifest.name} {manifest.recipe_digest[:12]}")
            absent = set(recipe.outputs) - set(manifest.files)
            if absent:
                raise DamagedError(f"its manifest lacks {', '.join(sorted(absent))}")
            for name, base in recipe.takes.items():
                if manifest.inputs.get(name) != bases[base.name].manifest.files[name].sha256:
                    raise DamagedError(f"it was built with another {name} than the {base.name} image has now")
            check_files(path, manifest, thorough=thorough)
        except DamagedError as error:
            return Missing(str(error))
        with suppress(OSError):
            os.utime(path)  # `prune` removes the least recently used image first
            path.chmod(_PRIVATE)  # images of earlier versions were readable by all
        return _KINDS.get(recipe.name, Image)(recipe.name, manifest.digest, path, manifest)

    def _require_own(self, path: Path) -> None:
        if why := why_exchangeable(path):
            raise ConfigError(
                f"images are not used from {self.directory}: another user could exchange them: {why}",
                hint="set VIRT_OVERHEAD_CACHE to a directory that only you can change, with everything above it; or "
                "correct the owner (chown) and the mode (chmod go-w)",
            )

    @contextmanager
    def locked(self, events: Events) -> Iterator[None]:
        """Lock the cache against other processes, and remove what killed processes left in it."""
        self._require_own(self.directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / ".lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                events(Note(f"another process is building images in {self.directory}: waiting for it"))
                lock.acquire(timeout=_LOCK_SECONDS)
        except Timeout:
            raise LabUnavailable(
                f"another process has locked {self.directory} for an hour",
                hint="end it (find it with `fuser`), or set VIRT_OVERHEAD_CACHE to another directory",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"images cannot be stored in {self.directory}: {error.strerror}",
                hint="set VIRT_OVERHEAD_CACHE to a directory that you can write to",
            ) from error
        try:
            self._sweep()
            yield
        finally:
            lock.release()

    @contextmanager
    def build_directory(self, recipe: Recipe) -> Iterator[Path]:
        """A directory with empty directories `in` and `out`, for the input and the output of a build. It is removed."""
        work = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{recipe.name}-", dir=self.directory))
        try:
            for name in ("in", "out"):
                (work / name).mkdir()
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def install(self, recipe: Recipe, out: Path, manifest: Manifest) -> None:
        """Make the finished directory `out` the image of `recipe`, and replace an existing one."""
        for file in out.iterdir():
            file.chmod(0o400 | file.stat().st_mode & 0o100)  # protects against writes by mistake
        out.chmod(_PRIVATE)
        write_manifest(manifest, out)
        path = self.path(recipe)
        retired = Path(tempfile.mkdtemp(prefix=_RETIRED, dir=self.directory))
        if path.exists():
            path.rename(retired / path.name)
        move(out, path)
        shutil.rmtree(retired, ignore_errors=True)

    def prune(self, recipes: Sequence[Recipe]) -> None:
        """Remove old images. Those of `recipes` stay, and the last used ones, up to IMAGES_PER_NAME of each name."""
        current = {self.path(recipe) for recipe in recipes}
        for recipe in recipes:
            entries = [path for path in self._list_entries(recipe.name) if path not in current]
            for path in sorted(entries, key=_read_last_used)[: len(entries) - (IMAGES_PER_NAME - 1)]:
                shutil.rmtree(path, ignore_errors=True)
            for log in self.directory.glob(f"{recipe.name}-*.log"):
                if not log.with_suffix("").exists() and log != self.log(recipe):
                    log.unlink(missing_ok=True)

    def last_seconds(self, recipe: Recipe) -> float:
        """Seconds that the newest build of this name took, or the recipe's estimate if there is none."""
        built: list[Manifest] = []
        for path in self._list_entries(recipe.name):
            with suppress(DamagedError):
                built.append(read_manifest(path))
        return max(built, key=lambda manifest: manifest.built_at).build_s if built else recipe.expected_s

    def _list_entries(self, name: str) -> list[Path]:
        return [path for path in self.directory.glob(f"{name}-*") if path.is_dir()]

    def _sweep(self) -> None:
        for path in self.directory.iterdir():
            if path.name.startswith((_BUILDING, _RETIRED)):
                with suppress(OSError):
                    remove_scratch(Path(os.fsdecode(read_regular(path / "in" / "scratch"))))
                shutil.rmtree(path, ignore_errors=True)


def _read_last_used(path: Path) -> int:
    return path.stat().st_mtime_ns


Build = Callable[[Recipe, Mapping[str, Path], Path, Path, Event], None]
"""Builds a recipe with files of other images in this directory, with this log, until it ends or the event is set."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images that fit together, and the private key for the login to guest and lab."""

    fio: Image
    guest: GuestImage
    emulator: EmulatorImage
    lab: LabImage
    key: Path

    @property
    def all(self) -> tuple[Image, ...]:
        """The images, each after those whose files it has."""
        return self.fio, self.guest, self.emulator, self.lab


def ensure_images(events: Events, *, rebuild: bool = False, verify: bool = False) -> ImageSet:
    """The images of this checkout's recipes, from the cache or built now. `rebuild` builds with today's packages.

    `verify` reads every file of the cache, also those that were not changed since they were read last. Raises
    ConfigError (key, recipes, cache directory) and LabUnavailable (programs, permissions, network, space), both with
    the remedy.
    """
    key = ensure_key()
    images = provide(
        Cache(choose_cache()), load_recipes(key.public), build_with_mmdebstrap, events, rebuild=rebuild, verify=verify
    )
    return ImageSet(
        images["fio"],
        cast(GuestImage, images["guest"]),
        cast(EmulatorImage, images["emulator"]),
        cast(LabImage, images["lab"]),
        key.private,
    )


def provide(
    cache: Cache,
    recipes: Sequence[Recipe],
    build: Build,
    events: Events,
    *,
    rebuild: bool = False,
    verify: bool = False,
) -> dict[str, Image]:
    """The images of `recipes` by name. Each recipe must come after the recipes whose files it uses."""
    images: dict[str, Image] = {}
    if not rebuild:
        for recipe in recipes:
            image = cache.find(recipe, images, thorough=verify)
            if isinstance(image, Missing):
                break
            images[recipe.name] = image
        else:
            return images
    with cache.locked(events), _Builds(cache, build, events) as builds:
        # Those that take longest first, as soon as the files that they use are there.
        left = sorted(recipes, key=cache.last_seconds, reverse=True)
        while left or builds.running:
            for recipe in [*left]:
                if not builds.can_begin(recipe):
                    continue
                left.remove(recipe)
                # Again, because another process may have built it while it held the lock.
                image = cache.find(recipe, builds.images, thorough=verify)
                if isinstance(image, Missing) and image.damage:
                    events(Note(f"the {recipe.name} image in {cache.path(recipe)} cannot be used: {image.damage}"))
                if rebuild or isinstance(image, Missing):
                    builds.begin(recipe)
                else:
                    builds.images[recipe.name] = image
            builds.wait()
        cache.prune(recipes)
    return {recipe.name: builds.images[recipe.name] for recipe in recipes}


class _Builds:
    """Builds that run at the same time within a `with` block, and the images that are there. At its end, none runs."""

    def __init__(self, cache: Cache, build: Build, events: Events) -> None:
        self._cache = cache
        self._build = build
        self._events = events
        self._stopped = Event()
        self._stack = ExitStack()
        self.images: dict[str, Image] = {}
        self.running: dict[Future[Image], tuple[Recipe, ExitStack]] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(held_back())
        self._pool = self._stack.enter_context(ThreadPoolExecutor(BUILDS_AT_ONCE))
        self._stack.callback(self._stopped.set)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def can_begin(self, recipe: Recipe) -> bool:
        beside = [other for other, _ in self.running.values()]
        room = len(beside) < BUILDS_AT_ONCE and has_space([recipe, *beside], self._cache.directory)
        return all(base.name in self.images for base in recipe.takes.values()) and (room or not beside)

    def begin(self, recipe: Recipe) -> None:
        step = ExitStack()
        step.enter_context(self._events.step(f"build the {recipe.name} image", self._cache.last_seconds(recipe)))
        self.running[self._pool.submit(self._add, recipe, dict(self.images))] = recipe, step

    def wait(self) -> None:
        with interruptible():
            ended, _ = wait(self.running, timeout=_WATCH_SECONDS, return_when=FIRST_COMPLETED)
        for future in ended:
            recipe, step = self.running.pop(future)
            self.images[recipe.name] = future.result()
            step.close()

    def _add(self, recipe: Recipe, bases: Mapping[str, Image]) -> Image:
        cache, begun = self._cache, time.monotonic()
        takes = {name: bases[base.name].path / name for name, base in recipe.takes.items()}
        with cache.build_directory(recipe) as work:
            self._build(recipe, takes, work, cache.log(recipe), self._stopped)
            cache.install(recipe, work / "out", _describe(recipe, bases, work / "out", time.monotonic() - begun))
        image = cache.find(recipe, bases)
        if isinstance(image, Missing):
            raise LabUnavailable(
                f"the {recipe.name} image was built, but is already missing or damaged: {image.damage or 'missing'}",
                hint=f"check the disk of {cache.directory}, and whether another program removes files there",
            )
        return image


def _describe(recipe: Recipe, bases: Mapping[str, Image], out: Path, seconds: float) -> Manifest:
    """The manifest of a build. Files that recipes write for it (packages, kernel, version) become part of it."""
    noted = {name: _take(out / name) for name in ("packages", "kernel", "version")}
    host_key = out / "host_key.pub"
    packages = dict(line.split(maxsplit=1) for line in noted["packages"].splitlines())
    fio_version = noted["version"] or next((base.manifest.fio_version for base in bases.values()), "")
    return Manifest(
        version=1,
        name=recipe.name,
        recipe_digest=recipe.digest,
        suite=recipe.suite,
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(seconds, 1),
        fio_version=fio_version,
        kernel=noted["kernel"],
        host_key=host_key.read_text().strip() if host_key.exists() else "",
        packages=packages,
        inputs={name: bases[base.name].manifest.files[name].sha256 for name, base in recipe.takes.items()},
        files={path.name: record_file(path) for path in sorted(out.iterdir())},
    )


def _take(path: Path) -> str:
    text = path.read_text().strip() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text
