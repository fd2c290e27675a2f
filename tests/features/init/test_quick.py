"""`virt-overhead quick`: which storage, and which of its layouts."""

from __future__ import annotations

import pytest

from harness.cli import main
from harness.errors import ConfigError
from harness.features.init.disks import NotOffered, Offers, StorageOffer
from harness.features.init.quick import choose_storage, select_cells

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


def test_one_layout_is_measured() -> None:
    assert select_cells(SMALL, host_only=False) == "quick-lvm- and not lvm-thin"
    assert select_cells(LARGE, host_only=False) == "quick-raw-"
    assert select_cells(LARGE, host_only=True) == "quick-host"


def test_a_directory_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quick", "/no/such/directory"]) != 0
    assert "/no/such/directory cannot be measured" in capsys.readouterr().err
