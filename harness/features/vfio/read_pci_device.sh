# $1: the disk's link or device. Prints a line per fact: a word, a tab and a text. The namespace of an NVMe disk may be
# below its subsystem instead of its controller (native multipath), so the script follows the controller's link.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
name=$(readlink -f "$1"); name=${name##*/}
[ -e "/sys/block/$name" ] || exit 0
above() { # the addresses of the PCI devices above a device, the nearest last
    readlink -f "$1" | tr / '\n' | grep -E '^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$'
}
controllers=$(ls -d "/sys/block/$name"/device/nvme[0-9]*/device 2>/dev/null)
addresses=$(for each in ${controllers:-/sys/block/$name/device}; do above "$each" | tail -n 1; done | sort -u)
for address in $addresses; do
    pci=/sys/bus/pci/devices/$address
    driver=$(readlink "$pci/driver")
    printf 'device\t%s %s\n' "$address" "${driver##*/}"
    group=$(readlink "$pci/iommu_group")
    printf 'group\t%s\n' "${group##*/}"
    for member in "$pci"/iommu_group/devices/*; do
        [ -e "$member" ] || continue
        driver=$(readlink "$member/driver")
        printf 'member\t%s %s %s\n' "${member##*/}" "$(cat "$member/class")" "${driver##*/}"
    done
    for disk in /sys/block/*; do
        for each in "$disk"/device "$disk"/device/nvme[0-9]*/device; do
            [ -e "$each" ] && above "$each"
        done | grep -qxF "$address" && printf 'disk\t%s\n' "${disk##*/}"
    done
done
printf 'serial\t%s\n' "$(cat "/sys/block/$name/device/serial" 2>/dev/null | tr -d ' ')"
[ -d /sys/bus/pci/drivers/vfio-pci ] || modprobe vfio-pci 2>/dev/null
[ -d /sys/bus/pci/drivers/vfio-pci ] && printf 'vfio\tyes\n'
exit 0
