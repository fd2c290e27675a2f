# $1: the disk's link or device. Prints the PCI addresses of the controllers of the whole disks below it. The namespace
# of an NVMe disk may be below its subsystem instead of its controllers (native multipath), but it has links to them.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
device=$(readlink -f "$1")
[ -b "$device" ] || exit 0
disks=$(lsblk --noheadings --inverse --list --output KNAME,TYPE "$device") || exit 1
printf '%s\n' "$disks" | while read -r name type; do
    [ "$type" = disk ] || continue
    at=/sys/block/$name/device
    controllers=$(ls -d "$at"/nvme[0-9]*/device 2>/dev/null)
    for each in ${controllers:-$at}; do
        readlink -f "$each" | tr / '\n' | grep -E '^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$' | tail -n 1
    done
done | sort -u
