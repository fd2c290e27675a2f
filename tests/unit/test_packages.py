"""What to install on which distribution, by what /etc/os-release says there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.errors import LabUnavailable
from harness.features.doctor.machine import HostState, Level, check_versions
from harness.files import install_command, os_ids
from harness.image.build import require_mode
from harness.lab.facts import HostFacts, read_facts
from harness.lab.transport.local import LocalRunner
from harness.model.base import Tools
from harness.model.layout import every_requirement
from tests.unit.os_releases import OS_RELEASES

INSTALL = {
    "bookworm": "apt-get install qemu-system-x86 fio",
    "trixie": "apt-get install qemu-system-x86 fio",
    "noble": "apt-get install qemu-system-x86 fio",
    "fedora": "dnf install qemu-system-x86 fio",
    "rhel": "dnf install qemu-kvm fio",
    "rocky": "dnf install qemu-kvm fio",
    "arch": "pacman -S --needed qemu-system-x86 fio",
    "manjaro": "pacman -S --needed qemu-system-x86 fio",
    "opensuse": "install what Debian has in qemu-system-x86 fio",
}


def ids_of(system: str, directory: Path) -> str:
    (directory / "os-release").write_text(OS_RELEASES[system])
    return os_ids(directory / "os-release")


@pytest.mark.parametrize("system", list(OS_RELEASES))
def test_each_distribution_has_its_own_command(tmp_path: Path, system: str) -> None:
    assert install_command(ids_of(system, tmp_path), "qemu-system-x86", "fio") == INSTALL[system]


def test_what_a_distribution_lacks_is_said(tmp_path: Path) -> None:
    command = install_command(ids_of("rocky", tmp_path), "zfsutils-linux", "lvm2")
    assert command == "dnf install lvm2; zfsutils-linux (Debian's name) is not in this distribution's own archive"


def test_a_package_that_has_what_several_of_debian_have_is_named_once(tmp_path: Path) -> None:
    assert install_command(ids_of("fedora", tmp_path), "fdisk", "util-linux") == "dnf install util-linux"


@pytest.mark.parametrize("text", ["", "ID='unfinished\n", None])
def test_a_machine_that_does_not_say_what_it_is_counts_as_debian(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "os-release").write_text(text)
    assert install_command(os_ids(tmp_path / "os-release"), "fio") == "apt-get install fio"


def test_every_program_of_a_layout_has_a_package_everywhere() -> None:
    packages = [each.package for each in every_requirement() if isinstance(each, Tools)]
    assert {"lvm2", "mdadm"} <= set(packages)
    for ids in ("debian", "fedora", "rhel", "arch"):
        assert all(install_command(ids, package) for package in packages)


def test_the_ids_are_read_from_the_host() -> None:
    asked = subprocess.run(
        ["sh", "-c", '. /etc/os-release; echo "$ID $ID_LIKE"'], capture_output=True, text=True, check=True
    )
    facts = read_facts(LocalRunner("here"))
    assert facts["os_id"].split() == asked.stdout.split() == os_ids().split()
    assert "os_id" not in facts.provenance


def test_the_doctor_names_the_packages_of_the_host(tmp_path: Path) -> None:
    state = HostState(HostFacts({"kernel": "6.8", "os_id": ids_of("rocky", tmp_path)}), files={})
    advice = {each.check: each.advice for each in check_versions(state) if each.level is Level.PROBLEM}
    assert advice == {
        "fio": "dnf install fio",
        "QEMU": "dnf install qemu-kvm",
        "libvirt": "dnf install libvirt-daemon-kvm",
    }


@pytest.mark.parametrize("system", ["fedora", "rhel", "arch", "opensuse"])
def test_where_images_cannot_be_built_the_way_to_get_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    if any(Path(place, "mmdebstrap").exists() for place in ("/usr/sbin", "/sbin")):
        pytest.skip("mmdebstrap cannot be hidden here")
    ids_of(system, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabUnavailable, match="on Debian and Ubuntu only, and this is") as caught:
        require_mode(etc=tmp_path, uid=os.getuid())
    assert "virt-overhead images import FILE" in str(caught.value.hint)
