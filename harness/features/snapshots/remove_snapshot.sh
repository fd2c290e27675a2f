# $1: `lvm`, `zfs` or `rbd`, $2: the volume as VG/LV, the dataset, or POOL/IMAGE, $3: the name of its snapshot, which is
# random, $4: settings of LVM, or empty; the pool of Ceph as in the lab file. Prints `removed`, `absent` or `foreign: WHY`.
# A snapshot with this name of another volume is not that of the run.
volume=$2 name=$3
case $1 in
lvm)
    group=${volume%/*}
    listed=$(lvs --noheadings --separator '|' -o vg_name,lv_name,origin) || exit
    origin=$(printf '%s\n' "$listed" | tr -d ' ' | sed -n "s/^$group|$name|//p")
    printf '%s\n' "$listed" | tr -d ' ' | grep -q "^$group|$name|" || { echo absent; exit; }
    [ "$group/$origin" = "$volume" ] || { echo "foreign: $group/$name is a snapshot of $origin"; exit; }
    lvremove --yes --quiet ${4:+--config "$4"} "$group/$name" >&2 || exit
    ;;
zfs)
    listed=$(zfs list -H -o name -t snapshot -d 1 "$volume" 2>/dev/null) ||
        { zfs list -H -o name >/dev/null || exit; echo absent; exit; }
    printf '%s\n' "$listed" | grep -qxF "$volume@$name" || { echo absent; exit; }
    # Fails if somebody has cloned or held it.
    zfs destroy "$volume@$name" || exit
    ;;
rbd)
    use_pool "$4"
    listed=$(rbd snap ls --format json "$volume") || { [ $? -eq 2 ] || exit; echo absent; exit; }
    printf '%s\n' "$listed" | grep -qF "\"name\":\"$name\"" || { echo absent; exit; }
    # Fails if somebody has protected it.
    rbd snap rm --no-progress "$volume@$name" >&2 || exit
    ;;
*) echo "no such kind: $1" >&2; exit 1 ;;
esac
echo removed
