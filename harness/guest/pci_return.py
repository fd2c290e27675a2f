"""The way back of a PCI device from a guest to its driver on the host, also after a run that was killed."""

from __future__ import annotations

import re

from harness.errors import HostError
from harness.guest.pci import PciDisk
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner

BACK_SECONDS = 60
_RESOLVE_SECONDS = 20
MARKS = f"{LEASE_DIRECTORY}/passed-through"
"""A file per device that a guest has or had, named by its address, with the link of its disk: for `returned_all`."""

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Two lines, each with its end: what a crash cut off is not one.
_MARK = re.compile(r"(?P<driver>[A-Za-z0-9_-]+)\t(?P<path>/dev/[^\t]+)\t")

# $1: the directory of marks, $2: the mark's name, $3: its size in bytes. The mark appears whole or not at all, and is
# on the disk before the device is handed over. The size tells whether all of it arrived.
_WRITE = r"""
umask 077
part=$1/.$2.$$.part
trap 'rm -f "$part"' EXIT
trap 'exit 1' HUP TERM
durable() { sync "$1" 2>/dev/null || sync; }
mkdir -p "$1" && cat >"$part" && [ "$(wc -c <"$part")" -eq "$3" ] && durable "$part" &&
    mv -f "$part" "$1/$2" && durable "$1"
"""

# $1: the directory of marks, $2: what is before /sys. A line per mark: its name, whether the host has the device, and
# its text with tabs as ends of lines.
_LIST = r"""
export LC_ALL=C
cd "$1" 2>/dev/null || exit 0
rm -f .*.part
for file in *; do
    [ -f "$file" ] || continue
    there=no
    [ -e "$2/sys/bus/pci/devices/$file" ] && there=yes
    printf '%s\t%s\t%s\n' "$file" "$there" "$(head -c 4096 <"$file" | tr '\n\000' '\t?')"
done
"""

# Ends every script that has done with a mark. $mark: its path.
_DROP = 'rm -f "$mark"; rmdir "${mark%/*}" 2>/dev/null || true'

# $1: address, $2: its driver on the host, $3: the disk's link, $4: seconds, $5: the mark, $6: what is before /sys.
# First the driver that it has now has to let go of it, where that is not its own; then its own is to take it, as if it
# had just been found.
_RETURN = rf"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
pci=$6/sys/bus/pci/devices/$1 mark=$5
bound() {{ driver=$(readlink "$pci/driver"); echo "${{driver##*/}}"; }}
tries=$(($4 * 10))
while [ "$(bound)" != "$2" ] || [ ! -b "$3" ]; do
    if [ "$(bound)" != "$2" ]; then
        echo >"$pci/driver_override"
        [ -e "$pci/driver" ] && echo "$1" >"$pci/driver/unbind"
        modprobe "$2" 2>/dev/null
        echo "$1" >"$6/sys/bus/pci/drivers_probe"
    fi 2>/dev/null
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || {{ now=$(bound); echo "its driver is ${{now:-none}}" >&2; exit 1; }}
    sleep 0.1
done
command -v udevadm >/dev/null && udevadm settle --timeout=20
{_DROP}
"""

# $1: address, $2: seconds, $3: the mark, $4: what is before /sys. For a mark that does not say what the device's driver
# is: the device is given to whatever driver claims it, unless a driver or a process has it already. Prints what was
# found; the mark is gone in any case, so that it is found once.
_RESOLVE = rf"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
pci=$4/sys/bus/pci/devices/$1 mark=$3
driver() {{ driver=$(readlink "$pci/driver"); echo "${{driver##*/}}"; }}
disk() {{
    for disk in "$4"/sys/block/*; do
        for each in "$disk"/device "$disk"/device/nvme[0-9]*/device; do
            [ -e "$each" ] && readlink -f "$each"
        done | tr / '\n' | grep -qxF "$1" && {{ echo "${{disk##*/}}"; return; }}
    done
}}
group=$(readlink "$pci/iommu_group")
if [ "$(driver)" = vfio-pci ] && ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q "/dev/vfio/${{group##*/}}\$"; then
    echo "a process has it open through vfio-pci, so it was left alone"
    {_DROP}
    exit
fi
tries=$(($2 * 10))
while :; do
    case $(driver) in
    vfio-pci | "")
        echo >"$pci/driver_override"
        [ -e "$pci/driver" ] && echo "$1" >"$pci/driver/unbind"
        modprobe "$(cat "$pci/modalias")"
        echo "$1" >"$4/sys/bus/pci/drivers_probe"
        ;;
    *) [ -n "$(disk "$1" . . "$4")" ] && break ;;
    esac 2>/dev/null
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || break
    sleep 0.1
done
now=$(driver) found=$(disk "$1" . . "$4")
echo "its driver is ${{now:-none}}, its disk ${{found:-not there}}"
{_DROP}
"""


def mark(runner: Runner, disk: PciDisk, *, directory: str = MARKS) -> None:
    """Note on the host that a guest gets the device, so that it is given back also after a crash of this process."""
    text = f"{disk.driver}\n{disk.path}\n"
    arguments = [directory, disk.address, str(len(text.encode()))]
    runner.run(["sh", "-c", _WRITE, "sh", *arguments], stdin=text, deadline=30)


def given_back(runner: Runner, address: str, driver: str, path: str, *, directory: str = MARKS, root: str = "") -> None:
    """Wait until the host has the disk again under its link, binding its driver where nothing else did.

    Raises HostError, with what to do by hand, where it is not back after BACK_SECONDS.
    """
    arguments = [address, driver, path, str(BACK_SECONDS), f"{directory}/{address}", root]
    done = runner.run(["sh", "-s", "--", *arguments], stdin=_RETURN, deadline=BACK_SECONDS * 2, check=False)
    if done.status != 0:
        raise HostError(
            f"{runner.name}: {path} did not come back from the guest within {BACK_SECONDS} s: {done.stderr.strip()}",
            hint=f"there: echo {address} >/sys/bus/pci/devices/{address}/driver/unbind; "
            f"echo >/sys/bus/pci/devices/{address}/driver_override; echo {address} >/sys/bus/pci/drivers_probe",
        )


def returned_all(runner: Runner, *, directory: str = MARKS, root: str = "") -> list[str]:
    """Give back what guests of killed runs had, and report it. The guests must have ended.

    A mark that cannot be read, and one of a device that the host no longer has, is removed and reported. `root` is a
    directory to use instead of `/`. Raises HostError where a disk does not come back.
    """
    returned = []
    printed = runner.run(["sh", "-s", "--", directory, root], stdin=_LIST, deadline=30).stdout
    for line in printed.splitlines():
        name, _, rest = line.partition("\t")
        there, _, text = rest.partition("\t")
        known = _MARK.fullmatch(text)
        if not _ADDRESS.fullmatch(name) or there != "yes":
            runner.run(["rm", "-f", "--", f"{directory}/{name}"], deadline=20)
            returned.append(f"the mark {directory}/{name}: the host has no such PCI device")
        elif known is None:
            arguments = [name, str(_RESOLVE_SECONDS), f"{directory}/{name}", root]
            found = runner.run(["sh", "-s", "--", *arguments], stdin=_RESOLVE, deadline=_RESOLVE_SECONDS + 40).stdout
            returned.append(f"the mark of PCI device {name}, which could not be read: {found.strip()}")
        else:
            given_back(runner, name, known["driver"], known["path"], directory=directory, root=root)
            returned.append(f"{known['path']}, back from a guest")
    return returned
