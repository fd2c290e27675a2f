# $1: the pool, $2: the mount point of its datasets, $3: the UUID of its partition. A pool cannot be given a UUID: it
# belongs to the run if it is on that partition and on nothing else.
done=absent
device=$(partition_of "$3")
if zpool list "$1" >/dev/null 2>&1; then
    on=$(zpool list -v -H -P -L "$1" | sed -n 's/^\t\(\/[^\t]*\).*/\1/p') || exit
    [ -n "$device" ] && [ "$on" = "$device" ] || { echo "foreign: a pool $1 is on $on"; exit; }
    zpool destroy "$1" || exit
    done=removed
fi
[ ! -d "$2" ] || rmdir "$2" || exit
if [ -n "$device" ]; then
    exec 9<"$device" || exit
    case $(blkid -p -s TYPE -o value "$device") in
    zfs_member)
        [ "$(blkid -p -s LABEL -o value "$device")" = "$1" ] || { echo "foreign: $device has another pool"; exit; }
        require_free "$device" && zpool labelclear -f "$device" || exit
        done=removed;;
    esac
fi
echo "$done"
