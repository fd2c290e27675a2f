"""A kind of storage in use that a feature brings: its key in the lab file, its shell functions, its volumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import harness.feature
from harness.errors import ConfigError, SafetyError, Unsupported
from harness.feature import Feature, FeatureStorage
from harness.features.init.offers import Names, find_storages
from harness.lab import lab_file, lab_schema
from harness.lab.guard.room import free_bytes, require_room
from harness.lab.inventory import Inventory, StorageKind, storage_kinds
from harness.lab.lab_file import lab_of
from harness.lab.storages import look_at
from harness.lab.transport.local import LocalRunner
from harness.layout.storage import LinearVolumes, find_volume_kind

GIB = 1 << 30
SCRIPT = """
inspect_shelf() {
    [ -d "$1" ] || refuse "there is no shelf"
    printf 'extent=4096\\nfact keeper=%s\\n' "$(cat "$1/keeper")"
}
identify_shelf() { cat "$1/uuid"; }
space_shelf() { put "$1" own "shelf $2" "shelf $2" $(cat "$2/space"); }
"""


def check(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError('allowed: a shelf, for example "/shelf"')
    return text


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    place = tmp_path / "shelf"
    place.mkdir()
    for name, content in {"keeper": "Ann", "uuid": "one", "space": f"{100 * GIB} {50 * GIB}"}.items():
        (place / name).write_text(content)
    return place


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, shelf: Path) -> Iterator[None]:
    """A feature with a kind of storage. What was computed from the list of features is computed again."""
    volumes = LinearVolumes()
    storage = FeatureStorage(
        key="shelf",
        kind=StorageKind("shelf", ("lvm",), space="shelf", hint="look at the shelf"),
        check=check,
        script=SCRIPT,
        load_volumes=lambda: volumes,
        find=lambda _runner: [str(shelf)],
    )
    everything = (*harness.feature.features(), Feature(name="shelves", brings=(storage,)))
    monkeypatch.setattr(harness.feature, "features", lambda: everything)
    computed = (storage_kinds, lab_schema.storage_keys, lab_file.make_host_keys, lab_file._make_schema)
    for function in computed:
        function.cache_clear()
    yield
    for function in computed:
        function.cache_clear()


def read(**keys: object) -> Inventory:
    return lab_of({"host": {"here": {"kind": "local", "storage": {"mine": keys}}}}, "lab.toml")


def test_a_lab_file_names_it_by_the_key_of_the_feature() -> None:
    (storage,) = read(shelf="/srv").hosts[0].stored
    assert (storage.identity, storage.layouts) == ("shelf /srv", ("lvm",))


def test_a_wrong_value_and_a_second_key_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'host.here.storage.mine.shelf = "srv": allowed: a shelf'):
        read(shelf="srv")
    with pytest.raises(ConfigError, match=r"exactly one of .*dataset, .*shelf"):
        read(shelf="/srv", dataset="tank")


def test_its_functions_look_at_it_and_read_its_space(shelf: Path) -> None:
    runner = LocalRunner()
    found = look_at(runner, "shelf", str(shelf))
    assert (found.identity, found.extent, found.facts) == ("one", 4096, (("keeper", "Ann"),))
    assert free_bytes(runner, found) == (50 * GIB, 100 * GIB)
    with pytest.raises(Unsupported, match="there is no shelf"):
        look_at(runner, "shelf", f"{shelf}/none")


def test_its_reserve_stays_free(shelf: Path) -> None:
    found = look_at(LocalRunner(), "shelf", str(shelf))
    with pytest.raises(Unsupported, match="must stay free for others"):
        require_room(LocalRunner(), found, 48 * GIB)


def test_a_command_does_not_run_if_the_storage_is_another_one(shelf: Path) -> None:
    room = require_room(LocalRunner(), look_at(LocalRunner(), "shelf", str(shelf)), GIB)
    assert room.run(["echo", "made"], deadline=20).stdout == "made\n"
    (shelf / "uuid").write_text("another")
    with pytest.raises(SafetyError, match=r"was \(one\) and is \(another\) now"):
        room.run(["echo", "made"], deadline=20)


def test_init_offers_what_the_feature_finds(shelf: Path) -> None:
    offers, _ = find_storages(LocalRunner(), Names())
    (offer,) = [offer for offer in offers if offer.key == "shelf"]
    assert replace(offer, name="") == replace(offer, name="", at=str(shelf), layouts=("lvm",), free_bytes=50 * GIB)


def test_the_feature_creates_its_volumes() -> None:
    assert isinstance(find_volume_kind("shelf"), LinearVolumes)
    assert find_volume_kind("thin_pool").baseline.kind == "lvm-thin"
