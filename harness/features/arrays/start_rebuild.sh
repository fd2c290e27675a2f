# shellcheck disable=SC2154 # md is set in rebuild.py
# $1: the array, $2: the spare, $3: seconds for which the recovery must last, $4 and $5: the kernel's defaults of the
# lower and the upper limit in KiB per second. component_size is in KiB (size_show in md.c).
size=$(cat "$md/component_size") && most=$((size / $3)) || exit
[ "$most" -le "$5" ] || most=$5
[ "$most" -ge 1 ] || most=1
least=$4
[ "$least" -le "$most" ] || least=$most
echo "$most" >"$md/sync_speed_max" && echo "$least" >"$md/sync_speed_min" || exit
read -r limit _ <"$md/sync_speed_max"
[ "$limit" = "$most" ] || { echo "sync_speed_max is $limit instead of $most" >&2; exit 1; }
mdadm --manage --quiet "$1" --add "$2" || exit
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    # The action is named before the recovery has begun, and sync_completed is none until then.
    read -r action <"$md/sync_action" && read -r completed <"$md/sync_completed" || exit
    case $action/$completed in recover/[0-9]*) exit 0;; esac
    sleep 0.1
done
echo "sync_action is $action, sync_completed is $completed" >&2
exit 1
