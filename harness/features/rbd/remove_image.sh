# shellcheck disable=SC2154 # set by pool.sh
# $1: the pool, $2: its identity, $3: the image, $4: its token, $5: its id, empty if it was not recorded yet.
use_pool "$1"
read_pool || exit
[ "$fsid/$number" = "$2" ] || { echo "it is in pool $2, and pool $pool is $fsid/$number now" >&2; exit 1; }
image=$pool/$3
facts=$(rbd info --format json "$image") || {
    [ $? -eq 2 ] || exit
    echo absent; exit
}
id=$(printf '%s\n' "$facts" | sed -n 's/.*"id":"\([0-9a-f]*\)".*/\1/p')
[ -z "$5" ] || [ "$id" = "$5" ] || { echo "replaced: its id was $5 and is $id now"; exit; }
token=$(rbd image-meta get "$image" voh.token 2>/dev/null) || {
    [ $? -eq 2 ] || { echo "its metadata cannot be read" >&2; exit 1; }
    # Before it is marked, only its name has the token, and its id is not recorded yet.
    [ -n "$5" ] || token=${3##*-}
}
[ "$token" = "$4" ] || { echo "replaced: it does not have the token of the run"; exit; }
snapshots=$(rbd snap ls --format json "$image") || exit
[ "$snapshots" = "[]" ] || { echo "foreign: somebody has made snapshots of it: rbd snap ls $image"; exit; }
# No image of any cluster has the same name, because it has the token.
for device in $(rbd device list --format json | tr '{' '\n' | sed -n "s/.*\"name\":\"$3\".*\"device\":\"\([^\"]*\)\".*/\1/p"); do
    # udev may still read from it, because fio has closed it after writing.
    udevadm settle --timeout=20
    rbd unmap "$device" || { sleep 5; rbd unmap "$device"; } || exit
done
# The cluster forgets a client that was killed half a minute later.
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    rbd rm --no-progress "$image" && { echo removed; exit; }
    [ $? -eq 16 ] || exit 1
    sleep 5
done
echo "another client still has it open: rbd status $image" >&2
exit 1
