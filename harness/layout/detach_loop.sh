# shellcheck disable=SC2086 # lists of words
# $1: the file, $2: its draft, $3: its inode and birth time, $4: the kernel's name of the loop device, its sequence
# number and the id of the boot, empty before they were recorded. The loop devices on our file, and the one that we
# attached, are detached. If another process has the loop device open (udev or lsblk, for a moment), the kernel detaches
# it when that process closes it, and `losetup -d` does not wait for that.
path=$1 draft=$2 inode=$3
read -r boot </proc/sys/kernel/random/boot_id || exit
devices() {
    listed=$(losetup --list --noheadings --output NAME,BACK-MAJ:MIN,BACK-INO) || return
    for file in "$path" "$draft"; do
        ours_at "$file" || continue
        number=$(stat -c %d "$file")
        key="$((number >> 8 & 0xfff | number >> 32 & ~0xfff)):$((number & 0xff | number >> 12 & ~0xff)) ${inode%% *}"
        echo "$listed" | sed 's/  */ /g' | sed -n "s/ $key\$//p"
    done
    name=${4%% *}
    [ -e "/sys/block/$name/loop/backing_file" ] || return 0
    read -r diskseq 2>/dev/null <"/sys/block/$name/diskseq" || return 0
    [ "$name $diskseq $boot" != "$4" ] || echo "/dev/$name"
}
case $inode in *:*)
    # An earlier version recorded numbers that may be those of another file by now.
    [ -n "$(losetup --list --noheadings --output NAME --associated "$path")" ] || { echo absent; exit; }
    echo "an earlier version recorded it without a birth time, so it is unknown whose it is" >&2
    exit 1;;
esac
found=$(devices "$@") || exit
[ -n "$found" ] || { echo absent; exit; }
for device in $(echo "$found" | sort -u); do losetup -d "$device" || exit; done
for _ in 1 2 3 4 5 6 7 8 9 10; do
    found=$(devices "$@") || exit
    [ -n "$found" ] || { echo removed; exit; }
    sleep 0.5
done
echo "another process has" $found open >&2
exit 1
