"""`virt-overhead init` on a host with libvirt: what it finds, and the lab file that it writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.cli import main
from harness.config.names import plain_name
from harness.features.init import lab_file, offers
from harness.features.init.lab_file import inspect_host, write_lab_text
from harness.features.init.offers import DiskOffer, Names, NotOffered, Offers, StorageOffer
from harness.lab.inventory import STORAGE_KINDS, DiskById, DiskByStorage, HostSpec
from harness.lab.lab_file import lab_of, load_lab
from harness.lab.transport.local import LocalRunner
from tests.features.init.init_hosts import BY_ID, InitHost, PlayedDisk, failing, in_use, pool_xml
from tests.unit.storage_doubles import GIB, LvmHost, ZfsHost
from tests.unit.transport_servers import small_filesystem

OPTANE = PlayedDisk("nvme0n1")
LINK = f"{BY_ID}/nvme-INTEL_SSDPED1D280GA_PHM1_1"
LOCAL: Mapping[str, Any] = {"kind": "local"}


@pytest.fixture
def host(tmp_path: Path) -> InitHost:
    return InitHost(LvmHost(tmp_path), OPTANE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the command runs."""
    found = tmp_path / "work"
    found.mkdir()
    return found


def run(host: InitHost, directory: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """`virt-overhead init` as if `host` was this machine."""

    def connect(_spec: HostSpec) -> InitHost:
        return host

    monkeypatch.setattr(lab_file, "connect", connect)
    monkeypatch.chdir(directory)
    return main(["init", *options])


def loaded(directory: Path, offers: Offers, change: tuple[str, str] = ("", "")) -> HostSpec:
    """The host in the file that is written for these offers, after a change of the owner."""
    path = directory / "lab.toml"
    text = write_lab_text("here", LOCAL, offers, "lab.toml")
    path.write_text(re.sub(change[0], change[1], text, flags=re.M) if change[0] else text, encoding="utf-8")
    (found,) = load_lab(path).hosts
    return found


RELEASED = (r"^## ", "")
"""The owner removes the hashes in front of the disks' lines."""


def test_the_file_has_storages_first_and_free_disks_as_comments(
    host: InitHost, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(host, directory, monkeypatch) == 0
    (found,) = load_lab(directory / "lab.toml").hosts
    assert [(each.name, each.key, each.at) for each in found.stored] == [
        ("pve", "volume_group", "pve"),
        ("pve-data", "thin_pool", "pve/data"),
    ]
    assert found.disks == ()
    text = (directory / "lab.toml").read_text()
    assert text.index("[host.here.storage.pve]") < text.index("## [host.here.disk.INTEL-SSDPED1D280GA]")
    out = capsys.readouterr().out
    assert "storage pve-data: thin pool pve/data, offers lvm-thin\n" in out
    assert out.endswith(
        "written: lab.toml\nnext:\n"
        "  virt-overhead doctor --lab=lab.toml    # is the host fit for measuring?\n"
        '  virt-overhead run --lab=lab.toml --profile=smoke --disk=pve -k "storage and lvm-randread-4k"    '
        "# a first figure, in about a minute\n"
        "  virt-overhead run --lab=lab.toml --profile=smoke -k storage    "
        "# all storages, in all modes that they offer\n"
    )


@pytest.mark.parametrize("layout", [layout for kind in STORAGE_KINDS.values() for layout in kind.layouts])
def test_the_first_figure_is_a_cell_of_the_scenario(layout: str) -> None:
    scenario = tomllib.loads((Path(__file__).parents[3] / "scenarios" / "storage.toml").read_text())
    assert layout in scenario["modes"]
    assert "randread-4k" in scenario["workloads"]


def test_a_free_disk_without_its_hashes_is_a_disk_that_may_not_be_overwritten_yet(
    host: InitHost, directory: Path
) -> None:
    offers = inspect_host(host, Names())
    found = loaded(directory, offers, RELEASED)
    assert found.disks == (DiskById("INTEL-SSDPED1D280GA", LINK, "PHM1", destroy=False, disk_class="nvme"),)
    assert "# INTEL SSDPED1D280GA, 260.8 GiB, /dev/nvme0n1 now\n" in (directory / "lab.toml").read_text()


def test_nothing_on_the_host_is_changed(host: InitHost) -> None:
    before = host.host.state
    inspect_host(host, Names())
    assert host.host.state == before
    programs = {line.split()[0] for line in host.host.ran if line}
    assert programs & {"lvcreate", "lvremove", "zfs create", "mkdir", "virsh"} == set()


@pytest.mark.parametrize(
    ("disk", "why"),
    [
        (PlayedDisk("sda", found=in_use("mounts")), "/dev/sda1 on /srv is mounted"),
        (PlayedDisk("sda", found=in_use("swaps")), "/dev/sda2 is used as swap"),
        (PlayedDisk("sda", found=in_use("holders")), "sda3 by dm-0 (pve-root), LVM is in use"),
        (PlayedDisk("sda", failed={"users": "no perl"}), "the probe `users` could not tell: no perl"),
        (PlayedDisk("sda", found={"contents": "1 0"}), "it holds data of an unknown kind"),
        (PlayedDisk("sda", serials=()), "it reports no serial number"),
        (PlayedDisk("sda", links=()), "no link in /dev/disk/by-id/ leads to it"),
        (PlayedDisk("sda", links=("nvme-A#B",)), "no link in /dev/disk/by-id/ leads to it"),
    ],
)
def test_a_disk_that_is_not_free_is_one_comment_with_the_reason(
    tmp_path: Path, directory: Path, disk: PlayedDisk, why: str
) -> None:
    offers = inspect_host(InitHost(LvmHost(tmp_path), disk), Names())
    assert offers.disks == ()
    assert loaded(directory, offers, RELEASED).disks == ()
    (line,) = [each for each in (directory / "lab.toml").read_text().splitlines() if "/dev/sda (" in each]
    assert line.startswith("# - /dev/sda (INTEL SSDPED1D280GA, 260.8 GiB): ")
    assert why in line


def test_a_disk_whose_inspection_fails_is_not_offered(host: InitHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedDisk, "evidence", "facts\t0\tnothing\n")
    offers = inspect_host(host, Names())
    assert offers.disks == ()
    assert "cannot be read" in offers.other_disks[0].why


@pytest.mark.parametrize(
    ("links", "serial", "chosen"),
    [
        (("wwn-0x5000", "ata-Samsung_SSD_S5_S5", "scsi-SATA_Samsung_S5"), "S5", "ata-Samsung_SSD_S5_S5"),
        (("scsi-35000c500", "wwn-0x5000c500", "scsi-SSEAGATE_ZA1"), "ZA1", "scsi-SSEAGATE_ZA1"),
        (("nvme-A_S1", "nvme-A_S1_1", "nvme-eui.00"), "S1", "nvme-A_S1_1"),
        (("md-name-here:0", "md-uuid-12:34"), "12:34", "md-uuid-12:34"),
        (("wwn-0x5000",), "S5", "wwn-0x5000"),
    ],
)
def test_the_link_has_the_serial_number_if_there_is_one(
    tmp_path: Path, links: tuple[str, ...], serial: str, chosen: str
) -> None:
    played = PlayedDisk("sdb", serials=(serial,), links=links)
    (disk,) = inspect_host(InitHost(LvmHost(tmp_path), played), Names()).disks
    assert (disk.id, disk.serial) == (f"{BY_ID}/{chosen}", serial)


def test_disks_of_one_model_have_different_names(tmp_path: Path, directory: Path) -> None:
    played = [PlayedDisk(f"sd{at}", serials=(f"S{at}",), links=(f"ata-X_S{at}",)) for at in "ab"]
    offers = inspect_host(InitHost(LvmHost(tmp_path), *played), Names())
    names = [each.name for each in loaded(directory, offers, RELEASED).disks]
    assert names == ["INTEL-SSDPED1D280GA", "INTEL-SSDPED1D280GA-2"]


def test_storages_with_too_little_space_are_comments(tmp_path: Path, directory: Path) -> None:
    host = InitHost(LvmHost(tmp_path, size=51 * GIB))
    offers = inspect_host(host, Names())
    assert [each.words for each in offers.storages] == ["thin pool pve/data"]
    loaded(directory, offers)
    line = "# - volume group pve: 1 GiB are free, and 2.55 GiB of them must stay free for others\n"
    assert line in (directory / "lab.toml").read_text()


def test_a_degraded_storage_is_not_offered(host: InitHost) -> None:
    host.host.change("pool", health="failed")
    host.host.change("group", missing=1)
    offers = inspect_host(host, Names())
    assert offers.storages == ()
    assert [each.why for each in offers.other_storages] == [
        "volume group pve cannot be used: LVM does not report that all its disks are there",
        "thin pool pve/data cannot be used: LVM reports failed",
    ]


def test_what_only_root_can_see_is_named(host: InitHost) -> None:
    host.user = "1000"
    said = "  WARNING: Running as a non-root user.\n  /run/lock/lvm/P_global:aux: open failed: Permission denied\n"
    host.answers = {"vgs": failing(said), "lvs": failing(said)}
    offers = inspect_host(host, Names())
    assert offers.storages == ()
    assert [each.what for each in offers.other_storages] == ["volume groups", "thin pools"]
    assert "vgs could not tell: " in offers.other_storages[0].why
    assert "Permission denied" in offers.other_storages[0].why
    assert [each.why for each in offers.other_disks] == ["only root can see everything that uses it"]
    assert offers.notes == ("only root can see everything here, and only root can measure: run init again as root",)


def test_pools_of_libvirt_and_mounted_file_systems_are_offered_once(
    host: InitHost, tmp_path: Path, directory: Path
) -> None:
    images, vms, bulk = (tmp_path / each for each in ("images", "vms", "bulk"))
    for each in (images, vms, bulk):
        each.mkdir()
    (bulk / "images").mkdir()
    (bulk / "images" / "vm-101.qcow2").touch()
    host.pools = {
        "default": pool_xml("dir", f"<target><path>{images}</path></target>"),
        "thin": pool_xml("logical", "<source><name>pve</name></source>"),
        "lun": pool_xml("iscsi", "<source/>"),
    }
    host.mount("/", "/dev/sda2")
    host.mount("/var/lib/docker/overlay", "/dev/sda2")
    host.mount(tmp_path, "/dev/sdb1")
    host.mount(vms, "/dev/sdb1[/vms]")
    host.mount(bulk, "nas:/bulk", "nfs4")
    host.mount("/boot/efi", "/dev/sda1", "vfat")
    offers = inspect_host(host, Names())
    found = {each.name: each for each in loaded(directory, offers).stored}
    assert {(name, each.key, each.at) for name, each in found.items() if each.key == "directory"} == {
        ("default", "directory", str(images)),
        (Names().name(str(bulk), ""), "directory", str(bulk)),
    }
    by_place = {each.words: each for each in offers.storages}
    assert by_place[f"directory {images}"].notes == ("ext4", "libvirt pool default")
    assert by_place["volume group pve"].notes == ("libvirt pool thin",)
    assert [each.what for each in offers.other_storages] == ["libvirt pool lun"]


def test_a_mounted_file_system_without_images_is_a_comment(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = InitHost(ZfsHost(tmp_path))
    host.host.change("pool", size=10 * GIB)
    backup = tmp_path / "backup"
    backup.mkdir()
    host.mount(backup, "nas:/backup", "nfs4")
    assert run(host, directory, monkeypatch) == 0
    assert load_lab(directory / "lab.toml").hosts[0].stored == ()
    assert "next:\n  release a storage or a disk in it: its comments say how\n" in capsys.readouterr().out
    (found,) = loaded(directory, inspect_host(host, Names()), RELEASED).stored
    assert (found.key, found.at) == ("directory", str(backup))


def test_the_directory_of_libvirt_is_offered_without_a_pool(
    host: InitHost, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    monkeypatch.setattr("harness.features.init.offers.IMAGES", str(images))
    host.images = True
    found = loaded(directory, inspect_host(host, Names())).stored
    assert str(images) in [each.at for each in found]


def test_a_defect_in_the_list_of_mounts_is_named(host: InitHost) -> None:
    host.answers = {"findmnt": failing("findmnt: cannot read /proc/self/mountinfo")}
    (other,) = inspect_host(host, Names()).other_storages
    assert (other.what, other.why) == ("mounted file systems", "findmnt: cannot read /proc/self/mountinfo")
    host.mounts = [{"target": "/srv"}]
    host.answers = {}
    assert 'there is no "source"' in inspect_host(host, Names()).other_storages[0].why


def test_datasets_with_volumes_are_offered_and_pools_without(tmp_path: Path, directory: Path) -> None:
    zfs = ZfsHost(tmp_path)
    offers = inspect_host(InitHost(zfs), Names())
    assert loaded(directory, offers).stored == (DiskByStorage("tank-vms", key="dataset", at="tank/vms"),)
    state = zfs.state
    del state["datasets"]["tank/vms/vm-101-disk-0"]
    zfs.state = state
    assert [each.at for each in inspect_host(InitHost(zfs), Names()).storages] == ["tank"]


@pytest.mark.parametrize(
    "name", ["voh-20260101-000000-abcd-lvm", "-rf", "a b", "$(reboot)", "x\ny = 1", 'a"b', "\x1b[2J"]
)
def test_odd_names_of_a_host_stay_comments(host: InitHost, directory: Path, name: str) -> None:
    host.answers = {"vgs": failing("")}
    host.answers["vgs"] = type(host.answers["vgs"])((), 0, f"  {name}\n", "")
    host.pools = {"odd": pool_xml("dir", f"<target><path>/srv/{name.replace('<', '')};x</path></target>")}
    if "\x1b" in name:
        host.pools = {"odd": "<pool"}
    offers = inspect_host(host, Names())
    assert [each.at for each in loaded(directory, offers).stored] == ["pve/data"]
    text = (directory / "lab.toml").read_text()
    assert "\x1b" not in text
    assert set(tomllib.loads(text)) == {"host"}


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_full_disk_is_named_and_leaves_no_part_of_a_file(
    host: InitHost,
    tmp_path: Path,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    with small_filesystem(full):
        with pytest.raises(OSError, match="No space left on device"):
            (full / "filler").write_bytes(bytes(4 << 20))
        output = full / "lab.toml"
        assert run(host, tmp_path, monkeypatch, f"--output={output}", *options) == 2
        assert [path.name for path in full.iterdir()] == ["filler"]
    assert f"{output} cannot be written: No space left on device" in capsys.readouterr().err


def test_an_existing_file_is_replaced_only_with_force(
    host: InitHost, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / "lab.toml"
    path.write_text("mine")
    assert run(host, directory, monkeypatch) == 2
    assert path.read_text() == "mine"
    assert host.host.ran == []
    said = "virt-overhead: lab.toml exists already\n  -> name another file with --output, or replace it with --force\n"
    assert capsys.readouterr().err == said
    assert run(host, directory, monkeypatch, "--output", "other.toml") == 0
    assert path.read_text() == "mine"
    assert run(host, directory, monkeypatch, "--force") == 0
    assert path.read_text() == (directory / "other.toml").read_text().replace("other.toml", "lab.toml")


def test_json_describes_everything_and_writes_no_file(
    host: InitHost, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host.played["sda"] = PlayedDisk("sda", found=in_use("mounts"))
    assert run(host, directory, monkeypatch, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["host"] == {"name": "here", "kind": "local"}
    assert found["storages"][0] == {
        "name": "pve",
        "key": "volume_group",
        "at": "pve",
        "layouts": ["lvm"],
        "free_bytes": 50 * GIB,
        "usable_bytes": 45 * GIB,
        "notes": [],
        "for_vms": True,
    }
    assert found["disks"][0]["id"] == LINK
    assert found["other_disks"][0]["why"] == "/dev/sda1 on /srv is mounted"
    assert list(directory.iterdir()) == []
    assert run(host, directory, monkeypatch, "--json", "--output", "lab.toml") == 0
    assert json.loads(capsys.readouterr().out)["file"] == "lab.toml"
    assert load_lab(directory / "lab.toml").hosts[0].stored


def test_a_host_with_nothing_to_measure_is_status_1(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = InitHost(LvmHost(tmp_path, size=50 * GIB))
    host.host.change("pool", used=1.0)
    assert run(host, directory, monkeypatch) == 1
    said = "next:\n  name a storage or a disk in it: docs/lab.md explains how\n  virt-overhead doctor --lab=lab.toml"
    assert said in capsys.readouterr().out
    assert load_lab(directory / "lab.toml").hosts[0].measured == ()
    path = directory / "lab.toml"
    path.write_text(re.sub("^## ", "", path.read_text(), flags=re.M))
    assert [each.at for each in load_lab(path).hosts[0].stored] == ["/srv/vms"]


def test_a_storage_with_the_name_of_a_scenario_gets_another(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = InitHost(LvmHost(tmp_path))
    host.host.change("group", name="optane")
    assert run(host, directory, monkeypatch) == 0
    assert [each.name for each in load_lab(directory / "lab.toml").hosts[0].stored] == ["optane-2", "optane-data"]


def test_the_command_line_loads_no_library_of_a_hypervisor() -> None:
    program = "import harness.cli, sys; sys.exit(bool({'libvirt', 'proxmoxer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=False).returncode == 0


def test_the_list_of_disks_of_this_machine_has_no_devices_on_others() -> None:
    printed = LocalRunner("this machine").run(["sh", "-s"], stdin=offers._LIST, deadline=30).stdout
    for each in offers._parse_listing(printed):
        assert Path("/sys/block", each.name).exists()
        assert not Path("/sys/block", each.name, "loop").exists()


_ODD = "".join(map(chr, range(0x180))) + "\u2028\u2029\ufeff\U0001f600Ⅷ" + "#\"'\\[]=\r\n" * 20


def odd_texts(seed: int, longest: int) -> list[str]:
    """Texts of any characters, and of a plain name with one such character."""
    random = Random(seed)
    texts = ["".join(random.choices(_ODD, k=random.randrange(longest))) for _ in range(200)]
    return ["", *texts, *(f"pve{each}data" for each in _ODD[:0x180])]


def test_every_name_is_valid_and_given_once() -> None:
    names = Names.besides(["Optane", "pve-data"])
    made = [names.name(each, "storage") for each in [*odd_texts(1, 80), "OPTANE", "optane", "pve.data"]]
    assert [plain_name(each) for each in made] == made
    assert len({each.lower() for each in made}) == len(made)
    assert not {"optane", "pve-data"} & {each.lower() for each in made}


def test_whatever_a_host_prints_is_one_line_of_a_comment() -> None:
    texts = odd_texts(2, 600)
    for text, why in zip(texts, reversed(texts), strict=True):
        offers = Offers(
            (StorageOffer("pve", "volume_group", "pve", ("lvm",), GIB, GIB, (text,)),),
            (DiskOffer("optane", LINK, "PHM1", text, why),),
            (NotOffered(text, why),),
            (NotOffered(why, text),),
            (text,),
        )
        written = write_lab_text("here", LOCAL, offers, text)
        (found,) = lab_of(tomllib.loads(written), "lab.toml").hosts
        assert [each.name for each in found.measured] == ["pve"]
