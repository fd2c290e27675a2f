# $1: the UUID of the array as mdadm writes it, $2: "legs" or "partitions"; then the paths of the legs or the UUIDs of
# the partitions. An array is stopped only if it has this UUID, and only members with this UUID lose their superblock.
# udev may hold an array for a moment, or assemble it again from members that still have their superblock.
uuid=$1 legs=$2; shift 2
settle() { ! command -v udevadm >/dev/null || udevadm settle --timeout=20; }
uuid_of() { mdadm --examine --export "$1" 2>/dev/null | sed -n 's/^MD_UUID=//p'; }
done=absent
arrays() {
    for at in /sys/block/md*/md; do
        [ -d "$at" ] || continue
        at=${at%/md}
        # An array is identified by any of its members.
        for member in "$at"/md/dev-*; do
            [ "$(uuid_of "/dev/${member##*/dev-}")" != "$uuid" ] || { echo "${at##*/}"; break; }
        done
    done
}
settle
for _ in $(seq 20); do
    found=$(arrays)
    [ -n "$found" ] || break
    done=removed
    for array in $found; do errors=$(mdadm --quiet --stop "/dev/$array" 2>&1) || sleep 0.2; done
    settle
done
[ -z "$(arrays)" ] || { echo "$errors" >&2; exit 1; }
if [ "$legs" = legs ]; then members=$(for leg; do readlink -e "$leg"; done)
else members=$(for partition; do partition_of "$partition"; done); fi
for member in $members; do
    [ "$(uuid_of "$member")" = "$uuid" ] || continue
    require_free "$member" && mdadm --quiet --zero-superblock "$member" || exit
    done=removed
done
settle
[ -z "$(arrays)" ] || { echo "udev assembled it again: $(arrays)" >&2; exit 1; }
echo "$done"
