# shellcheck disable=SC2154 # set by pool.sh
# $1: the pool, $2: the image of a volume of Proxmox VE, $3: the path that Proxmox VE reports. The kernel maps the image.
# Prints the link of the device, by which Proxmox VE finds it as well.
use_pool "$1"
read_pool || exit
set -e
case $3 in rbd:*)
    # QEMU opens the image itself. Without an exclusive lock, host and guest use it in turn. Others need the lock.
    features=$(rbd info --format json "$images/$2" | tr -d ' "' | sed -n 's/.*features:\[\([^]]*\)\].*/,\1,/p')
    for feature in journaling fast-diff object-map exclusive-lock; do
        case $features in *",$feature,"*) rbd feature disable "$images/$2" "$feature";; esac
    done;;
esac
device=$(rbd map "$images/$2")
udevadm settle --timeout=20
link=/dev/rbd-pve/$fsid/$images/$2
[ "$(readlink -e "$link")" = "$device" ] || { echo "$link of Proxmox VE does not lead to $device" >&2; exit 1; }
echo "$link"
