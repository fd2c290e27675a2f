"""Writes the images of a lab into one file, a bundle, and reads it on machines that cannot build them.

It has the manifest and the files of each image, and the private SSH key for which guest and lab were built. Its digest
covers the content of all images.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shlex
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from harness.errors import ConfigError
from harness.events import Events
from harness.files import move, replacing, sync
from harness.image import Cache, Image
from harness.image.build import Recipe, load_recipes
from harness.image.keys import KEY_NAME, SshKey, choose_key_directory, ensure_key, read_public_key
from harness.image.manifest import NAME as MANIFEST_NAME
from harness.image.manifest import DamagedError, Manifest
from harness.image.manifest import parse as parse_manifest

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
        with _adopt_key(key, keys) as adopted:
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
                    with cache.build_directory(recipe) as work:
                        bundle.unpack(manifests[name], work / "out")
                        cache.install(recipe, work / "out", manifests[name])
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
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, DamagedError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{path} is not a whole bundle of images: {error}", hint="export or fetch it again"
        ) from error
    except OSError as error:
        if error.filename != str(path):
            raise
        why = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise ConfigError(f"{path}: {why}", hint="virt-overhead images export writes one") from error


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


@contextmanager
def _adopt_key(content: bytes, directory: Path | None = None) -> Iterator[SshKey]:
    """The private key `content` of another machine. It is this user's after the block, if the user had none.

    Raises ConfigError if the user has another key, or if `content` is not a key, or needs a passphrase.
    """
    directory = directory or choose_key_directory()
    key = ensure_key(directory) if (directory / KEY_NAME).exists() else None
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        new = Path(scratch) / KEY_NAME
        new.touch(mode=0o600)
        new.write_bytes(content)
        public = read_public_key(new)
        if key is not None and key.public != public:
            raise ConfigError(
                f"the images are for another SSH key than {key.private}",
                hint=f"rename it (`mv {shlex.quote(str(key.private))}{{,.old}}`); guests and labs that have it must be "
                "stopped first",
            )
        yield key or SshKey(directory / KEY_NAME, public)
        if key is None:
            sync(new)
            move(new, directory / KEY_NAME)
