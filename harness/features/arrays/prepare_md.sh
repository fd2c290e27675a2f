# $1: the array, $2: KiB per second. Waits for its device node, sets the limits of its resync, and prints the kernel's
# path of it.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
! command -v udevadm >/dev/null || udevadm settle --timeout=20
device=$(readlink -e "$1") || { echo "there is no $1" >&2; exit 1; }
md=/sys/block/${device##*/}/md
for limit in sync_speed_max sync_speed_min; do
    [ ! -e "$md/sync_action" ] || echo "$2" >"$md/$limit" || exit
done
echo "$device"
