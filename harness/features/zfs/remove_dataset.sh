# $1: the dataset, $2: its property, $3: the value of that, $4: its guid, empty if that was not recorded yet, $5: its
# mount point or empty. `zfs destroy` refuses a dataset with snapshots. Retries, because udev may have a volume open.
zpool list "${1%%/*}" >/dev/null || { echo "its pool ${1%%/*} is not imported" >&2; exit 1; }
done=absent
if zfs list "$1" >/dev/null 2>&1; then
    facts=$(zfs get -Hp -o value,source "$2" "$1") || exit
    now=$(zfs get -Hp -o value guid "$1") || exit
    [ -z "$4" ] || [ "$now" = "$4" ] || { echo "replaced: $1 has the guid $now"; exit; }
    [ "$facts" = "$3	local" ] || { echo "foreign: $1 does not have the token of the run"; exit; }
    for _ in 1 2 3 4 5; do
        errors=$(zfs destroy "$1" 2>&1) && { done=removed; break; }
        sleep 0.5
    done
    [ "$done" = removed ] || { echo "$errors" >&2; exit 1; }
fi
[ -z "$5" ] || [ ! -d "$5" ] || rmdir "$5" || exit
echo "$done"
