"""`virt-overhead quick`: which storage, and which of its layouts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import ConfigError
from harness.features.init.lab_file import choose_storage, name_directory, select_cells
from harness.features.init.offers import NotOffered, Offers, StorageOffer

SMALL = StorageOffer("vms", "volume_group", "vms", ("lvm",), 20, 10)
LARGE = StorageOffer("images", "directory", "/var/lib/libvirt/images", ("raw", "qcow2"), 40, 30)
BACKUPS = StorageOffer("backups", "directory", "/backups", ("raw", "qcow2"), 90, 80, for_vms=False)
OFFERS = Offers((SMALL, LARGE, BACKUPS), other_storages=(NotOffered("directory /small", "1 GiB is free"),))


def test_without_a_wish_it_takes_the_storage_for_vms_with_most_free_space() -> None:
    assert choose_storage(OFFERS, None) is LARGE


@pytest.mark.parametrize(
    ("wanted", "name"), [("vms", "vms"), ("/var/lib/libvirt/images", "images"), ("backups", "backups")]
)
def test_a_name_or_a_path_chooses(wanted: str, name: str) -> None:
    storage = choose_storage(OFFERS, wanted)
    assert (storage.name, storage.for_vms) == (name, True)


def test_what_is_not_offered_is_refused_with_the_reason_and_the_others() -> None:
    with pytest.raises(ConfigError, match="/small cannot be measured: directory /small: 1 GiB is free") as refused:
        choose_storage(OFFERS, "/small")
    assert "vms (volume group vms), images" in (refused.value.hint or "")
    with pytest.raises(ConfigError, match="no storage for virtual machines was found"):
        choose_storage(Offers((BACKUPS,)), None)


def test_a_reason_is_found_by_a_name_with_blanks() -> None:
    for path in ("/my images", "/my\nimages"):
        offers = Offers((SMALL,), other_storages=(NotOffered(f"directory {path}", "it is mounted read-only"),))
        with pytest.raises(ConfigError, match=r"/my images cannot be measured: directory /my.images: it is "):
            choose_storage(offers, path)
    why = r"^images cannot be measured: the host has no storage of this name, and a directory begins with / or \./"
    with pytest.raises(ConfigError, match=why):
        choose_storage(Offers((SMALL,)), "images")


def test_a_directory_may_be_relative_and_a_storage_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "images").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/images")
    monkeypatch.chdir(tmp_path)
    assert name_directory(".") == str(tmp_path)
    assert name_directory("./deep") == str(tmp_path / "deep")
    assert name_directory("./link/..") == str(tmp_path / "deep")
    assert name_directory(f"{tmp_path}/deep/../link") == str(tmp_path / "deep" / "images")
    assert [name_directory(name) for name in ("tank/vms", "/srv/vms", None)] == ["tank/vms", "/srv/vms", None]


def test_one_layout_is_measured() -> None:
    assert select_cells(SMALL, host_only=False) == "vms_quick-lvm- and not lvm-thin"
    assert select_cells(LARGE, host_only=False) == "images_quick-raw-"
    assert select_cells(LARGE, host_only=True) == "images_quick-host-"


@pytest.mark.parametrize("name", ["vms", "srv-quick", "a.b", "storage"])
def test_no_cell_of_another_scenario_is_selected(name: str, tmp_path: Path) -> None:
    lab = tmp_path / "lab.toml"
    lab.write_text(f'[host.here]\nkind = "local"\n[host.here.storage."{name}"]\ndirectory = "/srv"\n')
    selected = select_cells(replace(LARGE, name=name), host_only=False)
    command = [sys.executable, "-m", "harness.cli", "run", f"--lab={lab}", "--collect-only", "-q", "--profile=smoke"]
    done = subprocess.run([*command, "-k", selected], capture_output=True, text=True, check=False, timeout=600)
    ids = [line for line in done.stdout.splitlines() if "test_overhead[" in line]
    assert len(ids) == 7, done.stdout
    assert all("quick-raw-" in line for line in ids)


def test_a_directory_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quick", "/no/such/directory"]) != 0
    assert "/no/such/directory cannot be measured" in capsys.readouterr().err
    assert main(["quick", "./no/../such"]) != 0
    assert f"{Path.cwd()}/such cannot be measured: directory {Path.cwd()}/such: " in capsys.readouterr().err
