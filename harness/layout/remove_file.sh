# shellcheck disable=SC2086 # lists of words
# $1: the file, $2: its draft, $3: its inode and birth time, empty if they were not recorded yet, $4: its file system,
# $5: its size.
path=$1 draft=$2 inode=$3 filesystem=$4 size=$5
case $inode in *:*)
    echo "an earlier version recorded it without a birth time: remove the file if it is the run's" >&2
    exit 1;;
esac
gone_with_boot "$filesystem" && { echo absent; exit; }
empty_draft() { # FILE: whether it is the draft, before its identity was recorded, and nobody has written to it
    [ "$1" = "$draft" ] && [ -z "$inode" ] && [ -f "$1" ] && [ ! -L "$1" ] || return
    facts=$(stat -c '%b %s %u %h' "$1") || return
    case $facts in "0 0 $(id -u) 1"|"0 $size $(id -u) 1") ;; *) return 1;; esac
}
for file in "$path" "$draft"; do
    ours_at "$file" || continue
    devices=$(losetup --list --noheadings --output NAME --associated "$file") || exit
    [ -z "$devices" ] || { echo "it is in use by" $devices >&2; exit 1; }
done
unchanged() { # FILE: whether it has the size that the run gave it; after a power failure, it may have none
    case $(stat -c '%s %b' "$1") in "$size "*|"0 0") ;; *) return 1;; esac
}
done=absent others=
# The draft is the last one, because it may be the proof for the other one.
for file in "$path" "$draft"; do
    if { ours_at "$file" && unchanged "$file"; } || empty_draft "$file"; then
        rm -f "$file" && done=removed || exit
    elif [ -e "$file" ] || [ -L "$file" ]; then others="$others $file"; fi
done
if [ "$done" = absent ]; then
    now=$(filesystem_of "$path") || { echo "the file system of $path cannot be identified" >&2; exit 1; }
    [ "$now" = "$filesystem" ] || {
        echo "${path%/*} is not on the file system on which the run made the file: mount that one again" >&2
        exit 1
    }
fi
[ -n "$others" ] || { echo "$done"; exit; }
[ "$done" = removed ] || done=replaced
echo "$done:$others is not the run's file, and stays"
