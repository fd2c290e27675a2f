# $@: links to disks, `file:PATH` for the loop device on a file, or kernel names of disks. Prints a line for each: the
# identity of the block device and its counter of sectors written, or "-" if there is none. The number `diskseq` changes
# when a device appears again under the same name, for example after a guest had it; then its counter begins at 0.
read -r boot </proc/sys/kernel/random/boot_id
for disk; do
    case $disk in file:*) disk=$(losetup --noheadings --output NAME --associated "${disk#file:}" | head -n 1);; esac
    name=$(readlink -f "$disk")
    name=${name##*/}
    sys=/sys/class/block/$name
    if [ -n "$name" ] && [ -e "$sys/stat" ]; then
        seq=0
        [ ! -e "$sys/diskseq" ] || read -r seq <"$sys/diskseq"
        read -r _ _ _ _ _ _ sectors _ <"$sys/stat"
        echo "$boot/$seq/$name $sectors"
    else
        echo -
    fi
done
