"""The PCI device behind a disk: whether a guest may have it, and the way back to its driver on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner
from harness.untrusted import reading

BACK_SECONDS = 60
MARKS = f"{LEASE_DIRECTORY}/passed-through"
"""A file per device that a guest has or had, named by its address, with the link of its disk: for `returned_all`."""

# $1: the disk's link or device. A line per fact: a word, a tab and a text. The namespace of an NVMe may hang on its
# subsystem instead of its controller (native multipath), so the way up is by the controller that both name.
_LOOK = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
name=$(readlink -f "$1"); name=${name##*/}
[ -e "/sys/block/$name" ] || exit 0
above() { # the addresses of PCI devices on the way to a device, the nearest last
    readlink -f "$1" | tr / '\n' | grep -E '^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$'
}
controllers=$(ls -d "/sys/block/$name"/device/nvme[0-9]*/device 2>/dev/null)
addresses=$(for each in ${controllers:-/sys/block/$name/device}; do above "$each" | tail -n 1; done | sort -u)
for address in $addresses; do
    pci=/sys/bus/pci/devices/$address
    driver=$(readlink "$pci/driver")
    printf 'device\t%s %s\n' "$address" "${driver##*/}"
    group=$(readlink "$pci/iommu_group")
    printf 'group\t%s\n' "${group##*/}"
    for member in "$pci"/iommu_group/devices/*; do
        [ -e "$member" ] || continue
        driver=$(readlink "$member/driver")
        printf 'member\t%s %s %s\n' "${member##*/}" "$(cat "$member/class")" "${driver##*/}"
    done
    for disk in /sys/block/*; do
        for each in "$disk"/device "$disk"/device/nvme[0-9]*/device; do
            [ -e "$each" ] && above "$each"
        done | grep -qxF "$address" && printf 'disk\t%s\n' "${disk##*/}"
    done
done
printf 'serial\t%s\n' "$(cat "/sys/block/$name/device/serial" 2>/dev/null | tr -d ' ')"
[ -d /sys/bus/pci/drivers/vfio-pci ] || modprobe vfio-pci 2>/dev/null
[ -d /sys/bus/pci/drivers/vfio-pci ] && printf 'vfio\tyes\n'
exit 0
"""

# $1: address, $2: its driver on the host, $3: the disk's link, $4: seconds, $5: the mark. First the driver that it has
# now has to let go of it, where that is not its own; then its own is to take it, as if it had just been found.
_RETURN = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
pci=/sys/bus/pci/devices/$1
bound() { driver=$(readlink "$pci/driver"); echo "${driver##*/}"; }
tries=$(($4 * 10))
while [ "$(bound)" != "$2" ] || [ ! -b "$3" ]; do
    if [ "$(bound)" != "$2" ]; then
        echo >"$pci/driver_override"
        [ -e "$pci/driver" ] && echo "$1" >"$pci/driver/unbind"
        modprobe "$2" 2>/dev/null
        echo "$1" >/sys/bus/pci/drivers_probe
    fi 2>/dev/null
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { now=$(bound); echo "its driver is ${now:-none}" >&2; exit 1; }
    sleep 0.1
done
command -v udevadm >/dev/null && udevadm settle --timeout=20
rm -f "$5"
rmdir "${5%/*}" 2>/dev/null || true
"""

_BRIDGE = "0x06"
"""PCI's class of bridges: the kernel's VFIO takes a group for safe whose other devices are these (PCIe ports)."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A device of an IOMMU group: its PCI class as the kernel writes it, and its driver, empty where it has none."""

    address: str
    pci_class: str
    driver: str


@dataclass(frozen=True, slots=True)
class PciDisk:
    """A disk and the PCI device behind it, as the host shows them. `group` is empty without an IOMMU.

    `disks` are the kernel's names of all disks behind the device. `serial` is what a guest will see, too.
    """

    path: str
    address: str
    driver: str
    serial: str
    group: str
    members: tuple[GroupMember, ...]
    disks: tuple[str, ...]
    has_vfio: bool


def behind(runner: Runner, path: str) -> PciDisk | None:
    """The PCI device behind the disk at `path`; None where there is not exactly one (a loop device, two paths)."""
    printed = runner.run(["sh", "-s", "--", path], stdin=_LOOK, deadline=60).stdout
    with reading(f"{runner.name}: the PCI device behind {path}"):
        return parse(path, printed)


def parse(path: str, printed: str) -> PciDisk | None:
    """What the script printed of the disk at `path`."""
    said: dict[str, list[str]] = {}
    for line in printed.splitlines():
        word, _, text = line.partition("\t")
        said.setdefault(word, []).append(text)
    if len(said.get("device", ())) != 1:
        return None
    address, _, driver = said["device"][0].partition(" ")
    members = (text.split(" ") for text in said.get("member", ()))
    return PciDisk(
        path=path,
        address=address,
        driver=driver,
        serial=said["serial"][0],
        group=said["group"][0],
        members=tuple(GroupMember(where, kind, by) for where, kind, by in members),
        disks=tuple(said.get("disk", ())),
        has_vfio="vfio" in said,
    )


def refusal(disk: PciDisk | None) -> str | None:
    """Why a guest cannot have this device, with the remedy; None where it can. Pure."""
    if disk is None or disk.driver != "nvme":
        what = "no PCI device is behind it" if disk is None else f"{disk.address} behind it is run by {disk.driver}"
        return f"VFIO hands over a whole PCI device, and only an NVMe disk is one: {what}"
    return next(_refusals(disk), None)


def _refusals(disk: PciDisk) -> Iterator[str]:
    if not disk.group:
        yield (
            f"{disk.address} is in no IOMMU group: switch the IOMMU on in the firmware (VT-d, AMD-Vi), and start the "
            "kernel with intel_iommu=on or amd_iommu=on"
        )
    others = [each for each in disk.members if each.address != disk.address and not each.pci_class.startswith(_BRIDGE)]
    if others:
        named = ", ".join(f"{each.address} ({each.driver or 'no driver'})" for each in others)
        yield (
            f"{disk.address} shares IOMMU group {disk.group} with {named}, which the guest would get as well: put the "
            "disk into a slot of its own behind a port with ACS"
        )
    if len(disk.disks) != 1:
        yield f"{disk.address} is one device with {len(disk.disks)} disks: {', '.join(disk.disks)}"
    if not disk.serial:
        yield f"{disk.address} tells no serial number, by which the guest would find the disk"
    if not disk.has_vfio:
        yield "the host's kernel has no vfio-pci: load it with modprobe vfio-pci, or use a kernel that has it"


def mark(runner: Runner, disk: PciDisk) -> None:
    """Note on the host that a guest gets the device, so that it is given back also after a crash of this process."""
    file = f"{MARKS}/{disk.address}"
    runner.run(["mkdir", "-p", MARKS], deadline=20)
    runner.run(["tee", file], stdin=f"{disk.driver}\n{disk.path}\n", deadline=20)


def given_back(runner: Runner, address: str, driver: str, path: str) -> None:
    """Wait until the host has the disk again under its link, binding its driver where nothing else did.

    Raises HostError, with what to do by hand, where it is not back after BACK_SECONDS.
    """
    arguments = [address, driver, path, str(BACK_SECONDS), f"{MARKS}/{address}"]
    done = runner.run(["sh", "-s", "--", *arguments], stdin=_RETURN, deadline=BACK_SECONDS * 2, check=False)
    if done.status != 0:
        raise HostError(
            f"{runner.name}: {path} did not come back from the guest within {BACK_SECONDS} s: {done.stderr.strip()}",
            hint=f"there: echo {address} >/sys/bus/pci/devices/{address}/driver/unbind; "
            f"echo >/sys/bus/pci/devices/{address}/driver_override; echo {address} >/sys/bus/pci/drivers_probe",
        )


def returned_all(runner: Runner) -> list[str]:
    """Give back what guests of killed runs had, and tell it. The guests must have ended."""
    listing = f'cd {MARKS} 2>/dev/null && for file in *; do [ -f "$file" ] && echo "$file" $(cat "$file"); done; true'
    returned = []
    for line in runner.run(["sh", "-c", listing], deadline=20).stdout.splitlines():
        address, driver, path = line.split()
        given_back(runner, address, driver, path)
        returned.append(f"{path}, back from a guest")
    return returned
