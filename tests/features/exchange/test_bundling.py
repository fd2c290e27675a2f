"""Images as one file: what one machine exports, another can use, and nothing that is damaged or for others."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.events import Events
from harness.features.exchange.bundling import export_images, import_images
from harness.image import Cache, Image
from harness.image.build import Recipe
from harness.image.keys import ensure_key
from harness.image.manifest import Manifest, record_file

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen (openssh-client)")

DISK = b"start" + bytes(200_000) + b"end" + bytes(100_000)


class Site:
    """A machine: its cache and its key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = Cache(path / "cache")
        self.keys = path / "ssh"

    def recipes(self, public_key: str) -> Sequence[Recipe]:
        fio = Recipe("fio", "extract", ("fio",), {"build": b"make fio\n"}, outputs=("fio.tar",))
        files = {"build": b"make a disk\n"}
        lab = Recipe("lab", "minbase", ("linux",), files, outputs=("root.img",), authorized_key=public_key)
        return fio, lab

    def build(self) -> list[Image]:
        """What `virt-overhead images` leaves in the cache."""
        images = []
        with self.cache.locked(Events()):
            for recipe in self.recipes(ensure_key(self.keys).public):
                with self.cache.build_directory(recipe) as work:
                    out = work / "out"
                    for name in recipe.outputs:
                        (out / name).write_bytes(DISK if name == "root.img" else b"the fio of the day")
                        (out / name).chmod(0o755)
                    files = {path.name: record_file(path) for path in out.iterdir()}
                    digest = recipe.digest
                    manifest = Manifest(
                        1, recipe.name, digest, "trixie", "2026-11-23", 1.0, "fio-3.39", "", "", {}, {}, files
                    )
                    self.cache.install(recipe, out, manifest)
                found = self.cache.find(recipe, {})
                assert isinstance(found, Image)
                images.append(found)
        return images

    def export(self) -> tuple[Path, str]:
        return export_images(self.build(), self.keys / "id_ed25519", self.path / "images.tar.gz")

    def take(self, bundle: Path, digest: str | None = None) -> list[Path]:
        return import_images(bundle, self.cache, Events(), digest=digest, recipes=self.recipes, keys=self.keys)[0]


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return Site(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Site:
    return Site(tmp_path / "there")


def test_another_machine_has_the_same_images_and_key_and_builds_nothing(here: Site, there: Site) -> None:
    bundle, digest = here.export()
    assert bundle.stat().st_mode & 0o777 == 0o600
    there.take(bundle, digest)
    key = ensure_key(there.keys)
    assert key.public == ensure_key(here.keys).public
    for recipe in there.recipes(key.public):
        built, found = (site.cache.find(recipe, {}, thorough=True) for site in (here, there))
        assert isinstance(built, Image)
        assert isinstance(found, Image)
        assert replace(found, path=built.path) == built
    root = there.cache.path(there.recipes(key.public)[1]) / "root.img"
    assert root.read_bytes() == DISK
    assert root.stat().st_mode & 0o777 == 0o500
    assert root.stat().st_blocks * 512 < len(DISK)


def test_the_digest_is_the_same_for_the_same_content(here: Site) -> None:
    first = here.export()[1]
    assert here.export()[1] == first


def test_another_digest_is_refused_before_anything_is_changed(here: Site, there: Site) -> None:
    bundle, digest = here.export()
    with pytest.raises(ConfigError, match=f"its digest is {digest}, not {'0' * 64}"):
        there.take(bundle, "0" * 64)
    assert not there.path.exists()


def test_the_key_of_a_user_is_never_replaced(here: Site, there: Site) -> None:
    bundle, _ = here.export()
    own = ensure_key(there.keys)
    with pytest.raises(ConfigError, match="the images are for another SSH key than"):
        there.take(bundle)
    assert ensure_key(there.keys) == own
    assert not there.cache.directory.exists()


def test_images_of_other_recipes_are_named(here: Site, there: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = here.export()
    fio, lab = here.recipes(ensure_key(here.keys).public)
    monkeypatch.setattr(there, "recipes", lambda _key: (fio, replace(lab, suite="forky")))
    with pytest.raises(ConfigError, match="this version of virt-overhead has other recipes of lab"):
        there.take(bundle)
    assert not (there.keys / "id_ed25519").exists()


@pytest.mark.parametrize("damage", ["content", "short", "text", "missing", "directory", "loop"])
def test_a_damaged_bundle_leaves_nothing_behind(here: Site, there: Site, damage: str) -> None:
    bundle, _ = here.export()
    packed = bundle.read_bytes()
    if damage == "content":
        bundle.write_bytes(gzip.compress(gzip.decompress(packed).replace(b"the fio of", b"the FIO of")))
    elif damage == "short":
        os.truncate(bundle, len(packed) - 40)
    elif damage == "text":
        bundle.write_bytes(b"<html>Not found</html>")
    else:
        bundle.unlink()
        if damage == "directory":
            bundle.mkdir()
        elif damage == "loop":
            bundle.symlink_to(bundle.name)
    with pytest.raises(
        ConfigError, match=r"not a whole bundle|no such file|cannot be read: (Is a dir|Too many levels)"
    ):
        there.take(bundle)
    assert not (there.keys / "id_ed25519").exists()
    left = [path.name for path in there.cache.directory.glob("*")] if there.cache.directory.exists() else []
    assert [name for name in left if name.startswith(("lab", ".building"))] == []
