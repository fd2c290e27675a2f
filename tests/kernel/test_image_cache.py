"""Images are built once, recognised by their recipe, checked before use, and built again rather than used damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Event

import pytest

from harness.errors import ConfigError, LabUnavailable
from harness.events import Event as ProgressEvent
from harness.events import Events, Note, StepFinished, StepStarted
from harness.image import Cache, Image, manifest, provide
from harness.image.build import Recipe, load_recipes


@dataclass
class Workbench:
    """A recipe `guest` on a recipe `fio`, a cache, and a build that is a matter of writing a few files."""

    cache: Cache
    built: list[str] = field(default_factory=list)
    seen: list[ProgressEvent] = field(default_factory=list)
    broken: str = ""
    release: str = "fio-3.39"
    script: bytes = b"cp fio /out\n"

    def recipes(self) -> tuple[Recipe, Recipe]:
        fio = Recipe("fio", "extract", ("fio",), {"build": b"make fio\n"}, outputs=("fio.tar",))
        files = {"build": self.script}
        guest = Recipe("guest", "extract", ("linux",), files, outputs=("vmlinuz",), takes={"fio.tar": fio})
        return fio, guest

    def build(self, recipe: Recipe, takes: Mapping[str, Path], work: Path, log: Path, _stopped: Event) -> None:
        out = work / "out"
        log.write_text(f"building {recipe.name}\n")
        (work / "in" / "build").write_bytes(recipe.files["build"])
        if recipe.name == "fio":
            (out / "fio.tar").write_text(self.release)
            (out / "version").write_text(f"{self.release}\n")
        else:
            (out / "vmlinuz").write_text(f"a kernel with {takes['fio.tar'].read_text()}")
            (out / "host_key.pub").write_text("ssh-ed25519 AAAA\n")
            (out / "kernel").write_text("6.12.1-amd64\n")
        (out / "packages").write_text("base-files 13.8\nlinux 1:6.12\n")
        self.built.append(recipe.name)
        if recipe.name == self.broken:
            raise LabUnavailable("the archive cannot be reached")

    def provide(self, *, rebuild: bool = False, verify: bool = False) -> dict[str, Image]:
        self.built.clear()
        self.seen.clear()
        events = Events(self.seen.append)
        return provide(self.cache, self.recipes(), self.build, events, rebuild=rebuild, verify=verify)

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.seen if isinstance(event, Note))

    @property
    def entries(self) -> set[str]:
        return {path.name for path in self.cache.directory.iterdir() if path.is_dir()}


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(Cache(tmp_path / "cache"))


def test_a_second_call_builds_nothing_and_says_nothing(bench: Workbench) -> None:
    first = bench.provide()
    assert bench.built == ["fio", "guest"]
    assert bench.provide() == first
    assert bench.built == []
    assert bench.seen == []


def test_the_manifest_says_what_is_in_an_image(bench: Workbench) -> None:
    images = bench.provide()
    manifest = images["guest"].manifest
    assert manifest.packages == {"base-files": "13.8", "linux": "1:6.12"}
    assert (manifest.fio_version, manifest.kernel, manifest.suite) == ("fio-3.39", "6.12.1-amd64", "trixie")
    assert manifest.host_key == "ssh-ed25519 AAAA"
    assert set(manifest.files) == {"vmlinuz", "host_key.pub"}
    assert manifest.inputs == {"fio.tar": images["fio"].manifest.files["fio.tar"].sha256}
    assert manifest.recipe_digest == bench.recipes()[1].digest
    assert images["guest"].vmlinuz.read_text() == "a kernel with fio-3.39"


def test_progress_tells_how_long_the_last_build_took(bench: Workbench) -> None:
    bench.provide()
    assert [(event.what, event.expected_s) for event in bench.seen if isinstance(event, StepStarted)] == [
        ("build the fio image", 20.0),
        ("build the guest image", 20.0),
    ]
    assert len([event for event in bench.seen if isinstance(event, StepFinished)]) == 2
    bench.provide(rebuild=True)
    assert all(event.expected_s == 0.0 for event in bench.seen if isinstance(event, StepStarted))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is not valid"),
        (lambda path: (path / "vmlinuz").unlink(), "vmlinuz cannot be read: No such file"),
        (lambda path: os.truncate(path / "vmlinuz", 3), "vmlinuz has 3 bytes instead of 22"),
        (lambda path: (path / "vmlinuz").write_text("A KERNEL WITH fio-3.39"), "the content of vmlinuz has changed"),
    ],
    ids=["no manifest", "half a manifest", "a file is gone", "a file is cut off", "other content"],
)
def test_a_damaged_image_is_built_again_and_the_damage_reported(bench: Workbench, damage: object, said: str) -> None:
    path = bench.provide()["guest"].path
    (path / "vmlinuz").chmod(0o644)
    assert callable(damage)
    damage(path)
    assert bench.provide()["guest"].vmlinuz.read_text() == "a kernel with fio-3.39"
    assert bench.built == ["guest"]
    assert str(path) in bench.notes
    assert said in bench.notes


def test_only_their_owner_reads_images_for_they_hold_private_host_keys(bench: Workbench) -> None:
    path = bench.provide()["guest"].path
    assert path.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o077 for each in path.iterdir() if each.name != "manifest.json"} == {0}
    path.chmod(0o755)  # as earlier versions left it
    bench.provide()
    assert path.stat().st_mode & 0o777 == 0o700


def test_damage_that_size_and_time_hide_is_found(bench: Workbench) -> None:
    vmlinuz = bench.provide()["guest"].vmlinuz
    before = vmlinuz.stat()
    vmlinuz.chmod(0o644)
    vmlinuz.write_text("A KERNEL WITH fio-3.39")
    os.utime(vmlinuz, ns=(before.st_atime_ns, before.st_mtime_ns))
    bench.provide()
    assert bench.built == ["guest"]


def test_a_file_is_read_again_only_if_it_was_changed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    vmlinuz = bench.provide()["guest"].vmlinuz
    read: list[str] = []
    digest = manifest.sha256_of

    def noted(path: Path) -> str:
        read.append(path.name)
        return digest(path)

    monkeypatch.setattr(manifest, "sha256_of", noted)
    bench.provide()
    assert read == []
    os.utime(vmlinuz)
    bench.provide()
    assert (read, bench.built) == (["vmlinuz"], [])
    bench.provide(verify=True)
    assert {"vmlinuz", "fio.tar"} < set(read)


def test_an_image_is_used_whose_program_was_given_a_second_name_as_by_perf(bench: Workbench, tmp_path: Path) -> None:
    os.link(bench.provide()["guest"].vmlinuz, tmp_path / "second name")
    bench.provide()
    assert bench.built == []


def test_a_cache_that_another_user_could_exchange_is_refused(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give directories to other users")
    own = Workbench(Cache(tmp_path / "own" / "cache"))
    path = own.provide()["guest"].path
    for changed, why in ((tmp_path / "own", "belongs to user 65534"), (path, "belongs to user 65534")):
        os.chown(changed, 65534, 65534)
        with pytest.raises(ConfigError, match=f"another user could exchange them: {changed} {why}") as refused:
            own.provide()
        assert "VIRT_OVERHEAD_CACHE" in (refused.value.hint or "")
        os.chown(changed, 0, 0)
    (path / "vmlinuz").chmod(0o666)
    own.provide()
    assert own.built == ["guest"], "another user could have changed the file"


def test_a_cache_whose_times_were_changed_by_copying_is_used(bench: Workbench) -> None:
    vmlinuz = bench.provide()["guest"].vmlinuz
    recorded = vmlinuz.stat().st_mtime_ns
    os.utime(vmlinuz, ns=(0, 0))
    bench.provide()
    assert bench.built == []
    assert vmlinuz.stat().st_mtime_ns == recorded


def test_a_rebuild_has_a_digest_of_its_own_in_the_same_place(bench: Workbench) -> None:
    first = bench.provide()
    bench.release = "fio-3.40"
    second = bench.provide(rebuild=True)
    assert bench.built == ["fio", "guest"]
    assert second["guest"].path == first["guest"].path
    assert second["guest"].digest != first["guest"].digest
    assert bench.entries == {image.path.name for image in second.values()}


def test_an_image_on_another_fio_than_its_fellows_is_built_again(bench: Workbench) -> None:
    fio = bench.provide()["fio"]
    bench.release = "fio-3.40"
    (fio.path / "manifest.json").unlink()
    assert bench.provide()["guest"].manifest.fio_version == "fio-3.40"
    assert bench.built == ["fio", "guest"]


def test_a_failed_build_leaves_nothing_but_its_log_and_the_image_that_was_there(bench: Workbench) -> None:
    first = bench.provide()
    bench.broken = "guest"
    with pytest.raises(LabUnavailable, match="the archive cannot be reached"):
        bench.provide(rebuild=True)
    assert bench.entries == {image.path.name for image in first.values()}
    assert bench.cache.log(bench.recipes()[1]).read_text() == "building guest\n"
    assert bench.provide() == {"fio": bench.provide()["fio"], "guest": first["guest"]}


def make_independent_recipes(*names: str) -> list[Recipe]:
    return [Recipe(name, "extract", (), {"build": b""}, outputs=("file",), scratch_bytes=1) for name in names]


def test_images_that_do_not_use_each_other_are_built_at_the_same_time(bench: Workbench) -> None:
    together = Barrier(2)

    def build(recipe: Recipe, _takes: Mapping[str, Path], work: Path, _log: Path, _stopped: Event) -> None:
        together.wait(timeout=60)
        (work / "out" / "file").write_text(recipe.name)

    images = provide(bench.cache, make_independent_recipes("one", "two"), build, Events())
    assert [image.name for image in images.values()] == ["one", "two"]


def test_a_build_that_fails_ends_the_one_beside_it(bench: Workbench) -> None:
    together = Barrier(2)
    ended: list[str] = []

    def build(recipe: Recipe, _takes: Mapping[str, Path], _work: Path, _log: Path, stopped: Event) -> None:
        together.wait(timeout=60)
        if recipe.name == "one":
            raise LabUnavailable("the archive cannot be reached")
        assert stopped.wait(60)
        ended.append(recipe.name)
        raise LabUnavailable("it was stopped")

    with pytest.raises(LabUnavailable, match="the archive cannot be reached"):
        provide(bench.cache, make_independent_recipes("one", "two", "three"), build, Events())
    assert ended == ["two"]
    assert bench.entries == set()


def test_what_a_killed_build_left_is_taken_away_by_the_next(bench: Workbench, tmp_path: Path) -> None:
    scratch = tmp_path / "virt-overhead-build-killed"
    left = bench.cache.directory / ".building-guest-x" / "in"
    for directory in (scratch / "mmdebstrap.x", left):
        directory.mkdir(parents=True)
    (left / "scratch").write_text(str(scratch))
    bench.provide()
    assert not left.parent.exists()
    assert not scratch.exists()


def test_two_images_of_a_name_are_kept_those_used_last(bench: Workbench) -> None:
    paths = []
    for number in range(3):
        bench.script = f"version {number}\n".encode()
        paths.append(bench.provide()["guest"].path)
        os.utime(paths[-1], (number, number))
    bench.script = b"version 1\n"
    bench.provide()
    assert bench.built == []
    assert paths[0].name not in bench.entries
    assert {paths[1].name, paths[2].name} <= bench.entries
    assert not paths[0].with_suffix(".log").exists()
    bench.script = b"version 3\n"
    assert {bench.provide()["guest"].path.name, paths[1].name} == {n for n in bench.entries if n.startswith("guest-")}


def test_a_cache_that_cannot_be_written_names_the_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="VIRT_OVERHEAD_CACHE"):
        Workbench(Cache(tmp_path / "file")).provide()


def test_the_digest_covers_all_that_decides_the_result() -> None:
    fio, guest, _emulator, _lab = load_recipes("ssh-ed25519 AAAA")
    changed = [
        replace(guest, files={**guest.files, "init": b""}),
        replace(guest, files={name: text for name, text in guest.files.items() if name != "modules"}),
        replace(guest, packages=guest.packages[1:]),
        replace(guest, authorized_key="ssh-ed25519 BBBB"),
        replace(guest, suite="forky"),
        replace(guest, components=("main", "contrib")),
        replace(guest, archives=("deb http://deb.debian.org/debian trixie main",)),
        replace(guest, takes={"fio.tar": replace(fio, files={"build": b""})}),
    ]
    digests = {recipe.digest for recipe in [guest, *changed]}
    assert len(digests) == len(changed) + 1
    assert replace(guest, packages=guest.packages[::-1]).digest == guest.digest
    assert load_recipes("ssh-ed25519 AAAA")[1].digest == guest.digest


def test_the_key_decides_on_guest_and_lab_alone() -> None:
    ours, theirs = load_recipes("ssh-ed25519 AAAA"), load_recipes("ssh-ed25519 BBBB")
    differ = {mine.name for mine, other in zip(ours, theirs, strict=True) if mine.digest != other.digest}
    assert differ == {"guest", "lab"}


def test_a_recipe_without_its_build_script_is_named(tmp_path: Path) -> None:
    for name in ("fio", "guest", "lab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "packages").write_text("# a comment\nbase-files\n")
    with pytest.raises(ConfigError, match=r"fio is not an image recipe: 'build' is missing"):
        load_recipes("ssh-ed25519 AAAA", tmp_path)


def test_the_emulator_is_made_of_nothing_of_the_others_and_stays_when_they_change() -> None:
    fio, _guest, emulator, lab = load_recipes("ssh-ed25519 AAAA")
    assert (emulator.takes, emulator.authorized_key) == ({}, "")
    assert lab.takes == {"fio.tar": fio}
    assert "qemu-system-x86_64" in emulator.outputs


def test_every_recipe_lists_plain_package_names_once() -> None:
    for recipe in load_recipes("ssh-ed25519 AAAA"):
        assert recipe.packages
        assert len(set(recipe.packages)) == len(recipe.packages)
        assert all(" " not in package and "," not in package for package in recipe.packages)
