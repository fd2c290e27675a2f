"""The images of a lab, built from the recipes in images/ and stored in the user's cache, which is always complete.

A bundle is these images as one file, for machines that cannot build them: `virt-overhead images export` and `import`.
It has the manifest and the files of each image, and the private SSH key for which guest and lab were built. Its digest
covers the content of all images.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from harness.errors import ConfigError, LabUnavailable
from harness.events import Events, Note
from harness.files import move, replacing, why_exchangeable
from harness.image.build import Recipe, load_recipes, remove_scratch
from harness.image.build import build as build_with_mmdebstrap
from harness.image.keys import adopt_key, ensure_key
from harness.image.manifest import NAME as MANIFEST_NAME
from harness.image.manifest import DamagedError, Manifest, record_file
from harness.image.manifest import check as check_files
from harness.image.manifest import parse as parse_manifest
from harness.image.manifest import read as read_manifest
from harness.image.manifest import write as write_manifest

IMAGES_PER_NAME = 2
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
    def build_directories(self, recipe: Recipe) -> Iterator[tuple[Path, Path]]:
        """Two empty directories, for the input and the output of a build. Both are removed at the end."""
        work = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{recipe.name}-", dir=self.directory))
        try:
            for name in ("in", "out"):
                (work / name).mkdir()
            yield work / "in", work / "out"
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def install(self, recipe: Recipe, out: Path, manifest: Manifest) -> None:
        """Make the finished directory `out` the image of `recipe`, and replace an existing one."""
        for file in out.iterdir():
            file.chmod(0o400 | file.stat().st_mode & 0o100)  # protects against writes by mistake
        out.chmod(_PRIVATE)
        write_manifest(manifest, out)
        path = self.path(recipe)
        if path.exists():
            path.rename(Path(tempfile.mkdtemp(prefix=_RETIRED, dir=self.directory)) / path.name)
        move(out, path)
        self._sweep(_RETIRED)

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

    def _sweep(self, *prefixes: str) -> None:
        for path in self.directory.iterdir():
            if path.name.startswith(prefixes or (_BUILDING, _RETIRED)):
                with suppress(OSError):
                    remove_scratch(Path((path / "in" / "scratch").read_text()))
                shutil.rmtree(path, ignore_errors=True)


def _read_last_used(path: Path) -> int:
    return path.stat().st_mtime_ns


Build = Callable[[Recipe, Mapping[str, Path], Path, Path, Path], None]
"""Builds a recipe. Arguments: the recipe, files of other images, an empty staging and output directory, a log file."""


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
        images.clear()
    with cache.locked(events):
        for recipe in recipes:  # again, because another process may have built them while it held the lock
            image = cache.find(recipe, images, thorough=verify)
            if isinstance(image, Missing) and image.damage:
                events(Note(f"the {recipe.name} image in {cache.path(recipe)} cannot be used: {image.damage}"))
            if rebuild or isinstance(image, Missing):
                image = _add(cache, recipe, images, build, events)
            images[recipe.name] = image
        cache.prune(recipes)
    return images


def _add(cache: Cache, recipe: Recipe, bases: Mapping[str, Image], build: Build, events: Events) -> Image:
    what = f"build the {recipe.name} image"
    takes = {name: bases[base.name].path / name for name, base in recipe.takes.items()}
    with events.step(what, cache.last_seconds(recipe)) as step, cache.build_directories(recipe) as (staging, out):
        build(recipe, takes, staging, out, cache.log(recipe))
        manifest = _describe(recipe, bases, out, step.seconds)
        cache.install(recipe, out, manifest)
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


KEY = "ssh/id_ed25519"
_SHORT = 12
_LARGEST_TEXT = 1 << 20
"""Bytes of a manifest or a key. Real ones have a few thousand."""
_BLOCK = 1 << 16

Recipes = Callable[[str], Sequence[Recipe]]
"""The recipes for a public key."""


def export_images(images: Iterable[Image], key: Path, path: Path | None = None) -> tuple[Path, str]:
    """Write a bundle to `path` (default: a name with the digest), readable only by this user. Returns path and digest.

    Raises OSError.
    """
    exported = list(images)
    digest = compute_digest(image.manifest for image in exported)
    target = path or Path(f"virt-overhead-images-{digest[:_SHORT]}.tar.gz")
    with replacing(target, mode=0o600) as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
        # The manifests come first: an import then needs to read the archive only once.
        for image in exported:
            _add_file(archive, f"{image.name}/{MANIFEST_NAME}", image.path / MANIFEST_NAME)
        _add_file(archive, KEY, key)
        for image in exported:
            for name in image.manifest.files:
                _add_file(archive, f"{image.name}/{name}", image.path / name)
    return target, digest


def import_images(
    path: Path,
    cache: Cache,
    events: Events,
    *,
    digest: str | None = None,
    recipes: Recipes = load_recipes,
    keys: Path | None = None,
) -> tuple[list[Path], str]:
    """Put the images of the bundle `path` into the cache. Returns their directories, and the bundle's digest.

    Every file is compared with its checksum before an image is usable. The key goes into `keys` (default: the user's
    data directory) if there is none yet. Raises ConfigError if the bundle is damaged, has another digest than `digest`,
    is for other recipes than this version has, or for another key than this user's.
    """
    with _open(path) as bundle:
        manifests, key = bundle.head()
        actual = compute_digest(manifests.values())
        if digest is not None and actual != digest.lower():
            raise ConfigError(f"{path}: its digest is {actual}, not {digest}", hint="fetch the file again")
        with adopt_key(key, keys) as adopted:
            wanted = {recipe.name: recipe for recipe in recipes(adopted.public)}
            other = [
                name for name, recipe in wanted.items() if name not in manifests or not _is_of(manifests[name], recipe)
            ]
            if other:
                raise ConfigError(
                    f"{path}: this version of virt-overhead has other recipes of {', '.join(other)}",
                    hint="export the images with this version, on the machine that builds them",
                )
            with cache.locked(events):
                for name, recipe in wanted.items():
                    with cache.build_directories(recipe) as (_, out):
                        bundle.unpack(manifests[name], out)
                        cache.install(recipe, out, manifests[name])
    return [cache.path(recipe) for recipe in wanted.values()], actual


def compute_digest(manifests: Iterable[Manifest]) -> str:
    """sha256 over the digests of the images. It does not depend on the compression."""
    lines = "".join(sorted(f"{manifest.digest}  {manifest.name}\n" for manifest in manifests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    member = tarfile.TarInfo(name)
    with path.open("rb") as content:
        status = os.fstat(content.fileno())
        member.size, member.mode = status.st_size, 0o400 | status.st_mode & 0o100
        archive.addfile(member, content)


def _is_of(manifest: Manifest, recipe: Recipe) -> bool:
    return manifest.recipe_digest == recipe.digest and set(recipe.outputs) <= set(manifest.files)


@contextmanager
def _open(path: Path) -> Iterator[_Bundle]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|gz") as archive:
            yield _Bundle(archive)
    except FileNotFoundError as error:
        if error.filename != str(path):
            raise
        raise ConfigError(f"{path}: no such file", hint="virt-overhead images export writes one") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, DamagedError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{path} is not a whole bundle of images: {error}", hint="export or fetch it again"
        ) from error


class _Bundle:
    """A bundle that is read from its start to its end. Methods raise DamagedError and tarfile's errors."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def head(self) -> tuple[dict[str, Manifest], bytes]:
        """The manifests by image, and the private key, which follows them."""
        manifests: dict[str, Manifest] = {}
        while True:
            member, content = self._read_next()
            if member.size > _LARGEST_TEXT:
                raise DamagedError(f"{member.name} has {member.size} bytes")
            if member.name == KEY:
                return manifests, content.read()
            manifest = parse_manifest(content.read())
            if member.name != f"{manifest.name}/{MANIFEST_NAME}":
                raise DamagedError(f"{member.name} is the manifest of {manifest.name}")
            manifests[manifest.name] = manifest

    def unpack(self, manifest: Manifest, out: Path) -> None:
        """Write the next files, which must be those of `manifest`, into the directory `out`."""
        for name, record in manifest.files.items():
            member, content = self._read_next()
            if member.name != f"{manifest.name}/{name}":
                raise DamagedError(f"{member.name} is there instead of {manifest.name}/{name}")
            if member.size != record.size_bytes:
                raise DamagedError(f"{member.name} has {member.size} bytes instead of {record.size_bytes}")
            if _write(content, out / name, record.size_bytes) != record.sha256:
                raise DamagedError(f"the content of {member.name} has changed")
            (out / name).chmod(0o600 | member.mode & 0o100)
            os.utime(out / name, ns=(record.mtime_ns, record.mtime_ns))

    def _read_next(self) -> tuple[tarfile.TarInfo, IO[bytes]]:
        member = self._archive.next()
        if member is None:
            raise DamagedError("it ends too early")
        content = self._archive.extractfile(member) if member.isfile() else None
        if content is None:
            raise DamagedError(f"{member.name} is not a file")
        return member, content


def _write(content: IO[bytes], target: Path, size_bytes: int) -> str:
    """Write a file, with holes for zeros (the lab's disk is sparse). Returns the sha256 of what was read."""
    digest, zeros = hashlib.sha256(), bytes(_BLOCK)
    with target.open("wb") as file:
        while block := content.read(_BLOCK):
            digest.update(block)
            if block == zeros:
                file.seek(len(block), io.SEEK_CUR)
            else:
                file.write(block)
        file.truncate(size_bytes)
    return digest.hexdigest()
