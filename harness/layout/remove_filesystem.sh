# $1: the mount point, $2: the UUID of the file system, $3: the UUID of its partition. Checks what is mounted, then
# what is on the partition: the file system may have been created but not mounted yet.
done=absent
if mountpoint -q "$1"; then
    device=$(findmnt --noheadings --nofsroot --output SOURCE --mountpoint "$1" | tail -n 1)
    now=$(blkid -p -s UUID -o value "$device") || { echo "$device cannot be identified" >&2; exit 1; }
    [ "$now" = "$2" ] || { echo "foreign: the file system $now is mounted at $1"; exit; }
    umount "$1" || exit
    done=removed
fi
# What is in it now is not of the run, whose files were on the file system.
[ ! -d "$1" ] || rmdir --ignore-fail-on-non-empty "$1" || exit
device=$(partition_of "$3")
if [ -n "$device" ]; then
    exec 9<"$device" || exit
    if [ "$(blkid -p -s UUID -o value "$device")" = "$2" ]; then
        require_free "$device" && wipefs --all --quiet "$device" || exit
        done=removed
    fi
fi
echo "$done"
