# shellcheck disable=SC2046 # lists of words
# Shell functions.
# `file_of PATH`: the inode and the birth time, as `INODE BIRTH`. A link is not followed. BIRTH is 0 if the file system
# stores none.
# `filesystem_of PATH`: what the file system at PATH keeps when it is mounted again; PATH need not exist yet. What is in
# memory ends with the boot, whose id it has.
file_of() {
    stat -c '%i %.9W' -- "$1" | sed 's/ \(0[.0]*\|-.*\|?\)$/ 0/'
}
filesystem_of() (
    set -f
    export PATH="$PATH:/usr/sbin:/sbin"
    at=$1
    while [ ! -d "$at" ]; do
        at=${at%/*}
        [ -n "$at" ] || at=/
    done
    set -- $(findmnt --noheadings --raw --nofsroot --output FSTYPE,FSROOT,SOURCE --target "$at" | tail -n 1)
    [ -n "$1" ] || exit 1
    case $1 in
    tmpfs|ramfs) read -r boot </proc/sys/kernel/random/boot_id && echo "memory:$boot:$(stat -f -c %i "$at")"; exit;;
    overlay)
        # All of them have the same source. What is written to one is below its upper directory.
        upper=$(findmnt --noheadings --raw --output FS-OPTIONS --target "$at" | tail -n 1 | tr , '\n' | grep ^upperdir=)
        echo "overlay:$upper:$2"; exit;;
    zfs) guid=$(zfs get -Hp -o value guid "$3" 2>/dev/null) && echo "zfs:$guid" && exit;;
    esac
    uuid=
    [ ! -b "$3" ] || uuid=$(blkid -p -s UUID -o value "$3" 2>/dev/null)
    echo "$1:${uuid:-$3}:$2"
)
gone_with_boot() { # FILESYSTEM: whether it was in memory, before the host booted
    case $1 in memory:*) ;; *) return 1;; esac
    read -r boot </proc/sys/kernel/random/boot_id || return 1
    case $1 in memory:"$boot":*) return 1;; esac
}
