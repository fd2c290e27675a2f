# `partition_of UUID` prints the device of the partition with that UUID, as read from the disk now. `require_free
# DEVICE` fails if the device is in use.
partition_of() {
    ! command -v udevadm >/dev/null || udevadm settle --timeout=20
    candidates=$(readlink -e "/dev/disk/by-partuuid/$1") ||
        candidates=$(for at in /sys/class/block/*/partition; do at=${at%/partition}; echo "/dev/${at##*/}"; done)
    for candidate in $candidates; do
        [ "$(blkid -p -s PART_ENTRY_UUID -o value "$candidate" 2>/dev/null)" != "$1" ] || { echo "$candidate"; return; }
    done
}
require_free() {
    perl -MFcntl -e 'sysopen(my $f, $ARGV[0], O_RDONLY | O_EXCL) or die "$ARGV[0] is in use: $!\n"' "$1"
}
