# shellcheck disable=SC2295 # a prefix without wildcards
# $1: the process's id, or the file with it, $2: the disk's device or file. Prints the numbers of the devices below the disk,
# and each limit of the process's control groups, of version 2 (io.max) and of version 1 (blkio).
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
case $1 in *[!0-9]*) pid=$(cat "$1") || exit 1 ;; *) pid=$1 ;; esac
from=$2
[ -b "$from" ] || from=$(findmnt -n -o SOURCE -T "$from")
lsblk -s -n -o MAJ:MIN "$from" 2>/dev/null | sed 's/^ */device /'
while IFS=: read -r _ controllers path; do
    at=
    case ",$controllers," in
    ,,) at=/sys/fs/cgroup ;;
    *,blkio,*) at=/sys/fs/cgroup/blkio ;;
    esac
    [ -n "$at" ] && [ -d "$at$path" ] || continue
    echo known
    while :; do
        sed 's/^/limit /' "$at$path/io.max" 2>/dev/null
        for name in read_iops read_bps write_iops write_bps; do
            file=$at$path/blkio.throttle.${name}_device
            sed "s/ / ${name%${name#?}}${name#*_}=/; s/^/limit /" "$file" 2>/dev/null
        done
        [ -n "${path#/}" ] || break
        path=${path%/*}
    done
done <"/proc/$pid/cgroup"
exit 0
