# shellcheck disable=SC2086 # lists of words
# shellcheck disable=SC2154 # set by device_facts.sh
# $1: the disk's link or empty, $2: the file behind its loop device or empty, $3: identity, $4: sectors, $5: UUID of
# the table, $6: UUIDs of the partitions; then positions of samples. Only the ends of the disk are zeroed. If the disk
# cannot discard, fio's data stay in between. Samples of them are recorded, by which the guard recognises them later.
link=$1 backing=$2 want_identity=$3 want_sectors=$4 ptuuid=$5 partuuids=$6; shift 6
if [ -n "$backing" ]; then
    dev=$(losetup --list --noheadings --output NAME --associated "$backing") || exit
    [ -n "$dev" ] || { echo absent; exit; }
    [ "$(echo $dev | wc -w)" -eq 1 ] || { echo "$backing is behind several loop devices:" $dev >&2; exit 1; }
else
    dev=$(readlink -e "$link") || { echo "the disk $link is not attached" >&2; exit 1; }
fi
# Open from here to the end: the kernel does not give the name of an open device to another one.
exec 9<"$dev" || exit
facts_of "${dev##*/}" || exit
[ "$identity $sectors" = "$want_identity $want_sectors" ] || {
    echo "foreign: at $link$backing is now a disk with the identity $identity and $sectors sectors"; exit; }
settle() { ! command -v udevadm >/dev/null || udevadm settle --timeout=20; }
readable() { dd if="$dev" of=/dev/null bs=1M "$@" status=none; }
forget_partitions() { # udev may have one open for a moment
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        settle
        blockdev --rereadpt "$dev" 2>/dev/null && break
        sleep 0.3
    done
    settle
    left=$(lsblk -nlo TYPE "$dev" | grep -cx part)
    [ "$left" -eq 0 ] || partx --delete "$dev"
}
size=$((sectors * 512))
# blkid returns the same status for a disk that cannot be read and for a disk without a table.
readable count=1 && readable iflag=skip_bytes skip=$((size - 1048576)) || { echo "$dev cannot be read" >&2; exit 1; }
now=$(blkid -p -s PTUUID -o value "$dev")
[ -n "$now" ] || { forget_partitions; echo absent; exit; }
[ "$now" = "$ptuuid" ] || { echo "foreign: $dev has another partition table, $now"; exit; }
found=$(sfdisk --dump "$dev" | sed -n 's/.*, uuid=\([0-9A-Fa-f-]*\).*/\1/p' | tr 'A-F\n' 'a-f ')
[ "$found" = "$partuuids " ] || { echo "foreign: its partitions are not the ones that were created: $found"; exit; }
settle
parts=$(lsblk -nlpo PATH,TYPE "$dev" | sed -n 's/ *part$//p')
for each in "$dev" $parts; do require_free "$each" || exit; done
if [ -n "$parts" ]; then
    # Everything of the run was removed from the partitions before. Other contents came later.
    signatures=$(wipefs --noheadings --output DEVICE,TYPE,UUID $parts 2>&1) || { echo "$signatures" >&2; exit 1; }
    [ -z "$signatures" ] || { echo "foreign: one of its partitions has contents:" $signatures; exit; }
fi
blkdiscard -f -o 1048576 -l $((size - 2097152)) "$dev" 2>/dev/null
settle
left=$(left_file)
directory=${left%/*}
mkdir -p "${directory%/*}" && umask 077 && mkdir -p "$directory" || exit
echo "$(digest_of "$dev" "$@")" "$@" >"$left.new" && sync "$left.new" &&
    mv "$left.new" "$left" && sync "${left%/*}" || exit
# The start of the disk last: while the table exists, the removal can be repeated.
zero() { dd if=/dev/zero of="$dev" bs=1M count=1 conv=notrunc,fsync oflag=seek_bytes seek="$1" status=none; }
zero $((size - 1048576)) && zero 0 || exit
forget_partitions
echo removed
