# $1: a volume, a file or a directory. Prints the kernel's names of the disks below it. The disk of a loop device is
# that of its file. Files of an NFS server have `nfs:` and the mount point, whose bytes the kernel counts. An md array
# counts as a disk, as an array behind a controller does: its counters show each byte once, and those of its members show
# mirrors and parity as well.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
by_number() { basename "$(readlink -f "/sys/dev/block/$1")"; }
devices_of() {
    [ ! -b "$1" ] || { readlink -f "$1"; return; }
    set -- "$1" "$(findmnt --noheadings --output FSTYPE --target "$1")"
    case $2 in
    btrfs)
        for device in "/sys/fs/btrfs/$(findmnt --noheadings --output UUID --target "$1")/devices"/*; do
            echo "/dev/${device##*/}"
        done;;
    nfs|nfs4)
        mount=$(findmnt --noheadings --output TARGET --target "$1" | tail -n 1)
        case $mount in *[[:space:]]*) ;; *) echo "nfs:$mount";; esac;;
    zfs)
        pool=$(findmnt --noheadings --nofsroot --output SOURCE --target "$1")
        zpool list -v -H -P -L "${pool%%/*}" | sed -n 's/^\t\(\/[^\t]*\).*/\1/p';;
    *)
        number=$(findmnt --noheadings --output MAJ:MIN --target "$1")
        # The number may belong to no device, and the name in /proc/mounts may be another one (/dev/root).
        if [ -e "/sys/dev/block/$number" ]; then echo "/dev/$(by_number "$number")"
        else readlink -f "$(findmnt --noheadings --nofsroot --output SOURCE --target "$1")"; fi;;
    esac
}
inverse() { lsblk --noheadings --inverse --list --output KNAME,TYPE "$1"; }
disks() (
    case $1 in nfs:*) echo "$1"; return;; esac
    listed=$(inverse "$1" 2>/dev/null | sort -u)
    arrays=$(echo "$listed" | sed -n 's/^\([^ ]*\) *\(raid\|linear\).*/\1/p')
    inside=" "
    for array in $arrays; do
        inside="$inside$(inverse "/dev/$array" | sed -n "s/ .*//; /^$array\$/!p" | tr '\n' ' ')"
    done
    echo "$listed" | while read -r name type; do
        case $inside in *" $name "*) continue;; esac
        file=$(cat "/sys/block/$name/loop/backing_file" 2>/dev/null)
        if [ "$type" = loop ] && [ -e "$file" ]; then
            devices_of "$file" | while read -r device; do disks "$device"; done
            continue
        fi
        case $type in disk|loop|raid*|linear) echo "$name";; esac
    done
)
case $1 in
/dev/zvol/*)
    pool=${1#/dev/zvol/}
    zpool list -v -H -P -L "${pool%%/*}" | sed -n 's/^\t\(\/[^\t]*\).*/\1/p';;
*) devices_of "$1";;
esac | while read -r device; do disks "$device"; done | sort -u
