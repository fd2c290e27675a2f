# Prints "disk NAME" for each whole disk and md array, then "serial VALUE" and "link PATH" for it, separated by tabs.
# Devices on others (device-mapper, loop devices, zvols) are not disks. The paths of a multipath NVMe disk are hidden.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
links=$(for link in /dev/disk/by-id/*; do [ ! -L "$link" ] || printf '%s\t%s\n' "$(readlink -f "$link")" "$link"; done)
for at in /sys/block/*; do
    name=${at##*/}
    case $name in dm-*|drbd*|fd[0-9]*|loop*|mtdblock*|nbd*|ram*|rbd*|sr[0-9]*|zd[0-9]*|zram*) continue;; esac
    [ "$(cat "$at/hidden" 2>/dev/null)" != 1 ] && [ "$(cat "$at/size" 2>/dev/null || echo 0)" -gt 0 ] || continue
    printf 'disk\t%s\n' "$name"
    udevadm info --query=property --name="/dev/$name" 2>/dev/null |
        sed -n 's/^\(ID_SERIAL_SHORT\|ID_SCSI_SERIAL\|MD_UUID\)=/serial\t/p'
    printf '%s\n' "$links" | while IFS="$(printf '\t')" read -r device link; do
        [ "$device" != "/dev/$name" ] || printf 'link\t%s\n' "$link"
    done
done
