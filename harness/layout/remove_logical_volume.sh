# shellcheck disable=SC2046 # lists of words
# shellcheck disable=SC2034 # a column that is not needed
# $1: the volume, $2: the UUID of its group, $3: its tag, $4: its UUID, empty if that was not recorded yet. The settings
# of LVM are those of the host: it must back up the metadata of its group as usual. Retries the removal, because udev
# may have the volume open.
name=$1 group=$2 tag=$3 uuid=$4
vgs --noheadings -o vg_uuid | tr -d ' ' | grep -qxF -- "$group" || {
    echo "its volume group $group is not there" >&2; exit 1; }
listed=$(lvs --noheadings --separator '|' -o vg_uuid,lv_uuid,lv_name,origin_uuid,lv_tags) || exit
ours() {
    printf '%s\n' "$listed" | tr -d ' ' | while IFS='|' read -r of id called origin tags; do
        [ "$of" = "$group" ] || continue
        case ,$tags, in
        *,"$tag",*) echo "$id $called";;
        *) [ "$called" != "$name" ] || echo "foreign $called";;
        esac
    done
}
set -- $(ours)
[ $# -gt 0 ] || { echo absent; exit; }
if [ "$1" = foreign ]; then
    word=foreign
    [ -z "$uuid" ] || printf '%s\n' "$listed" | tr -d ' ' | cut -d '|' -f 2 | grep -qxF -- "$uuid" || word=replaced
    echo "$word: $name is another volume, without the tag of the run"; exit
fi
[ $# -eq 2 ] || { echo "foreign: several volumes have the tag $tag"; exit; }
[ -z "$uuid" ] || [ "$1" = "$uuid" ] || { echo "foreign: $2 has the UUID $1"; exit; }
! printf '%s\n' "$listed" | tr -d ' ' | cut -d '|' -f 4 | grep -qxF -- "$1" || {
    echo "somebody has made a snapshot of it, which its removal would remove" >&2; exit 1; }
for _ in 1 2 3 4 5; do
    errors=$(lvremove --yes --quiet --select "lv_uuid=$1" 2>&1)
    left=$(lvs --noheadings -o lv_uuid --select "lv_uuid=$1") || exit
    [ -n "$left" ] || { echo removed; exit; }
    sleep 0.5
done
echo "$errors" >&2
exit 1
