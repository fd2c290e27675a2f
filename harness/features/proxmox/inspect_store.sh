# shellcheck disable=SC2086,SC2116 # lists of words
# $1: its kind, $2: its name, $3: the UUID of the run's partition, $4: the device that PVE mounts for a directory, empty
# if PVE lists none. Prints `absent`, `ours`, `foreign: WHY`, or `holds: WHAT` if it has contents.
# A thing is `ours` if the partition with this UUID is the only device below it.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
maker=$1 name=$2 partuuid=$3
verdict() { echo "$*"; exit 0; }
require_ours() { # devices
    for device; do
        readlink -e "$device" >/dev/null || { echo "$name is on $device, which does not exist" >&2; exit 1; }
        found=$(blkid --probe --match-tag PART_ENTRY_UUID --output value "$device") || [ $? -eq 2 ] || exit 1
        [ "$found" = "$partuuid" ] || verdict "foreign: $name is on $device, which is not the partition of this run"
    done
}
require_empty() { # directory
    files=$(find "$1" -xdev ! -type d) || exit 1
    [ -z "$files" ] || verdict "holds: $(printf '%s' "$files" | head -n 3 | tr '\n' ' ')"
}
case $maker in
lvm|lvmthin)
    # Lists all groups, because a request for a missing group fails like any other error.
    listed=$(pvs --noheadings -o pv_name,vg_name) || exit 1
    devices=$(printf '%s\n' "$listed" | while read -r device group; do [ "$group" != "$name" ] || echo "$device"; done)
    [ -n "$devices" ] || verdict absent
    require_ours $devices
    listed=$(lvs --noheadings -o vg_name,lv_name) || exit 1
    volumes=$(printf '%s\n' "$listed" | while read -r group volume; do
        [ "$group" != "$name" ] || [ "$maker:$volume" = "lvmthin:$name" ] || echo "$volume"
    done)
    [ -z "$volumes" ] || verdict "holds: $(echo $volumes)";;
zfs)
    command -v zpool >/dev/null || verdict absent
    listed=$(zpool list -H -o name) || exit 1
    printf '%s\n' "$listed" | grep -qxF "$name" || verdict absent
    devices=$(zpool list -vHPL "$name") || exit 1
    devices=$(printf '%s\n' "$devices" | while read -r device rest; do
        case $device in /dev/*) echo "$device";; esac
    done)
    [ -n "$devices" ] || exit 1
    require_ours $devices
    datasets=$(zfs list -H -o name -r "$name") || exit 1
    datasets=$(printf '%s\n' "$datasets" | grep -vxF "$name")
    [ -z "$datasets" ] || verdict "holds: $(echo $datasets)"
    mounted=$(zfs get -H -o value mountpoint "$name") || exit 1
    case $mounted in /*) require_empty "$mounted";; esac;;
directory)
    mounted=$(findmnt --noheadings --output SOURCE --mountpoint "/mnt/pve/$name") || [ $? -eq 1 ] || exit 1
    [ -n "$mounted$4" ] || verdict absent
    require_ours $mounted $4
    [ -z "$mounted" ] || require_empty "/mnt/pve/$name";;
esac
echo ours
