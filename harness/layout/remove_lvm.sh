# $1: the volume group, $2: the UUID of its physical volume, $3: its volumes, $4: the UUID of its partition, $5: LVM's
# settings. Retries the removal, because udev may have a volume open.
group=$1 uuid=$2 wanted=$3 config=$5
lvm_() { command=$1; shift; "$command" --config "$config" "$@"; }
device=$(partition_of "$4")
[ -n "$device" ] || { echo absent; exit; }
exec 9<"$device" || exit
type=$(blkid -p -s TYPE -o value "$device")
[ -n "$type" ] || { echo absent; exit; }
now=$(blkid -p -s UUID -o value "$device")
[ "$type $now" = "LVM2_member $uuid" ] || { echo "foreign: $device holds $type $now"; exit; }
found=$(lvm_ pvs --noheadings --separator '|' -o vg_name,vg_uuid "$device" 9<&- | tr -d ' ') || exit
if [ -n "${found#|}" ]; then
    [ "${found%|*}" = "$group" ] || { echo "foreign: the volume group is now called ${found%|*}"; exit; }
    select="vg_uuid=${found#*|}"
    members=$(lvm_ vgs --noheadings -o pv_uuid --select "$select" 9<&- | tr -d ' ') || exit
    [ "$members" = "$uuid" ] || { echo "foreign: volume group $group also has other physical volumes"; exit; }
    for volume in $(lvm_ lvs --noheadings -o lv_name --select "$select" 9<&-); do
        case " $wanted " in *" $volume "*) ;; *) echo "foreign: volume group $group has a volume $volume"; exit;; esac
    done
    for _ in 1 2 3 4 5; do
        errors=$(lvm_ vgremove --yes --quiet --force --select "$select" 2>&1 9<&-) && break
        sleep 0.3
    done
    [ -z "$(lvm_ vgs --noheadings -o vg_name --select "$select" 9<&-)" ] || { echo "$errors" >&2; exit 1; }
fi
for _ in 1 2 3 4 5; do
    errors=$(lvm_ pvremove --yes --quiet --force "$device" 2>&1 9<&-) && { echo removed; exit; }
    sleep 0.3
done
echo "$errors" >&2
exit 1
