# $1: the name, $2: the UUID of its header, $3: the UUID of its partition, or empty for a volume, which is removed next.
# The kernel's own identity of the device has UUID and name. Retries, because udev may have the device open.
done=absent
for at in /sys/block/dm-*/dm; do
    [ -r "$at/name" ] && [ "$(cat "$at/name")" = "$1" ] || continue
    now=$(cat "$at/uuid")
    [ "$now" = "CRYPT-LUKS2-$(echo "$2" | tr -d -)-$1" ] || { echo "foreign: $1 has the identity $now"; exit; }
    for _ in 1 2 3 4 5; do
        errors=$(cryptsetup close "$1" 2>&1) && { done=removed; break; }
        sleep 0.5
    done
    [ "$done" = removed ] || { echo "$errors" >&2; exit 1; }
done
device=
[ -z "$3" ] || device=$(partition_of "$3")
if [ -n "$device" ]; then
    exec 9<"$device" || exit
    if [ "$(blkid -p -s UUID -o value "$device")" = "$2" ]; then
        require_free "$device" && wipefs --all --quiet "$device" || exit
        done=removed
    fi
fi
echo "$done"
