"""Provides all images: from the cache if they are complete, else built now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from harness.errors import LabUnavailable
from harness.events import Events, Note
from harness.image.build import build as build_with_mmdebstrap
from harness.image.cache import Build, Cache, EmulatorImage, GuestImage, Image, LabImage, Missing, cache_root
from harness.image.keys import ensure_key
from harness.image.manifest import Manifest, record_file
from harness.image.recipe import Recipe, load_recipes


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
        Cache(cache_root()), load_recipes(key.public), build_with_mmdebstrap, events, rebuild=rebuild, verify=verify
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
            found = cache.find(recipe, images, thorough=verify)
            if isinstance(found, Missing):
                break
            images[recipe.name] = found
        else:
            return images
        images.clear()
    with cache.locked(events):
        for recipe in recipes:  # again, because another process may have built them while it held the lock
            found = cache.find(recipe, images, thorough=verify)
            if isinstance(found, Missing) and found.damage:
                events(Note(f"the {recipe.name} image in {cache.path(recipe)} cannot be used: {found.damage}"))
            if rebuild or isinstance(found, Missing):
                found = _add(cache, recipe, images, build, events)
            images[recipe.name] = found
        cache.prune(recipes)
    return images


def _add(cache: Cache, recipe: Recipe, bases: Mapping[str, Image], build: Build, events: Events) -> Image:
    what = f"build the {recipe.name} image"
    takes = {name: bases[base.name].path / name for name, base in recipe.takes.items()}
    with events.step(what, cache.last_seconds(recipe)) as step, cache.build_directories(recipe) as (staging, out):
        build(recipe, takes, staging, out, cache.log(recipe))
        manifest = _describe(recipe, bases, out, step.seconds)
        cache.install(recipe, out, manifest)
    found = cache.find(recipe, bases)
    if isinstance(found, Missing):
        raise LabUnavailable(
            f"the {recipe.name} image was built, but is already missing or damaged: {found.damage or 'missing'}",
            hint=f"check the disk of {cache.directory}, and whether another program removes files there",
        )
    return found


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
