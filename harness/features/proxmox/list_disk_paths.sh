# $1: the disk's link or device. Prints every path that leads to it or to a partition of it.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
devices=$(lsblk -nlpo PATH "$(readlink -f "$1")" 2>/dev/null) || exit 0
echo "$devices"
for link in /dev/disk/*/* /dev/mapper/*; do
    target=$(readlink -f "$link")
    for device in $devices; do [ "$target" != "$device" ] || echo "$link"; done
done
