# shellcheck disable=SC2046,SC2086 # lists of words
# Arguments per storage: its name, its type, and its volume group, VG/POOL, dataset or path. Prints a line per place
# from which its volumes take space: the storage; `own`, or `below` if the place is below a file system; what tells the
# place from others; its name; total and available bytes; for a thin pool also its chunk, the bytes of its metadata and
# the used share of them (percent). A file system on a thin volume, a zvol or a sparse file takes space there as well,
# whenever a block of it is written for the first time. The path of the type `file` need not exist yet.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
ask() { command=$1; shift; "$command" --noheadings --nosuffix --units b --separator ' ' "$@"; }
put() { # STORAGE WORDS...
    printf '%s' "$1"; shift
    printf '\t%s' "$@"; echo
}
thin_pool() ( # STORAGE WHERE VG/POOL
    facts=$(ask lvs -o lv_size,data_percent,chunk_size,lv_metadata_size,metadata_percent "$3") || exit 1
    set -- "$@" $facts
    [ $# -eq 8 ] || { echo "LVM does not report how full the thin pool $3 is: $facts" >&2; exit 1; }
    put "$1" "$2" "thin pool $3" "thin pool $3" "$4" "$5" "$6" "$7" "$8"
)
dataset() ( # STORAGE WHERE DATASET
    facts=$(zfs list -Hp -o used,available "$3") || exit 1
    set -- "$1" "$2" "ZFS pool ${3%%/*}" $facts
    put "$1" "$2" "$3" "$3" "$(($4 + $5))" "$5"
)
directory() ( # STORAGE WHERE PATH
    facts=$(df --block-size=1 --output=size,avail,fstype,source "$3") || exit 1
    storage=$1 where=$2 path=$3
    set -- $(printf '%s\n' "$facts" | tail -n 1)
    total=$1 available=$2 kind=$3
    shift 3
    source=$*
    if [ "$kind" = zfs ]; then
        put "$storage" "$where" "ZFS pool ${source%%/*}" "ZFS pool ${source%%/*}" "$total" "$available"
        exit
    fi
    # A device may have several names. Other sources, such as `tmpfs`, are not the names of devices.
    if [ -b "$source" ]; then key=$(stat -L -c %t:%T "$source"); else key=$(stat -c %d "$path" 2>/dev/null); fi
    put "$storage" "$where" "file system ${key:-$source}" "file system $source" "$total" "$available"
    case $source in /dev/*) below "$storage" "$source";; esac
)
below() ( # STORAGE DEVICE
    pool=$(ask lvs -o vg_name,pool_lv "$2" 2>/dev/null) || pool=
    case $pool in *[!\ ]\ [!\ ]*) thin_pool "$1" below "$(echo $pool | tr ' ' /)"; exit;; esac
    name=$(readlink -f "$2") || exit 0
    name=${name##*/}
    at=/sys/class/block/$name
    [ -e "$at" ] || exit 0
    if [ -e "$at/partition" ]; then
        disk=$(readlink -f "$at/..") || exit 1
        below "$1" "/dev/${disk##*/}"
        exit
    fi
    if [ -e "$at/loop/backing_file" ]; then
        file=$(cat "$at/loop/backing_file") && facts=$(stat -c '%b %B %s' "$file") || exit 1
        set -- "$1" $facts
        [ "$(($2 * $3))" -ge "$4" ] || directory "$1" below "$file"
        exit
    fi
    case $name in zd*)
        for link in $(find /dev/zvol -type l); do
            [ "$(readlink -f "$link")" != "/dev/$name" ] || { dataset "$1" below "${link#/dev/zvol/}"; exit; }
        done
        echo "/dev/zvol has no link to $name" >&2
        exit 1;;
    esac
    for slave in "$at"/slaves/*; do
        [ -e "$slave" ] || continue
        device=/dev/${slave##*/}
        [ ! -r "$slave/dm/name" ] || device=/dev/mapper/$(cat "$slave/dm/name")
        below "$1" "$device" || exit
    done
)
while [ $# -gt 0 ]; do
    name=$1 type=$2 at=$3
    shift 3
    case $type in
    lvm)
        facts=$(ask vgs -o vg_size,vg_free "$at") || exit 1
        put "$name" own "volume group $at" "volume group $at" $facts;;
    lvmthin) thin_pool "$name" own "$at" || exit 1;;
    zfspool) dataset "$name" own "$at" || exit 1;;
    *)
        if command -v "space_$type" >/dev/null; then "space_$type" "$name" "$at" || exit 1; continue; fi
        if [ "$type" = file ]; then while [ ! -d "$at" ]; do at=$(dirname "$at"); done; fi
        directory "$name" own "$at" || exit 1;;
    esac
done
