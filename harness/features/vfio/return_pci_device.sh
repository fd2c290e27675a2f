# $1: address, $2: its driver on the host, $3: the disk's link, $4: seconds. Unbinds the device from VFIO's driver, and
# lets the kernel probe it again for its own driver alone: Proxmox VE has told VFIO's driver to take any device like it. If it is bound to another driver, another program has
# changed that since, and the device stays as it is.
pci=/sys/bus/pci/devices/$1
bound() { driver=$(readlink "$pci/driver"); echo "${driver##*/}"; }
tries=$(($4 * 10)) done=absent
case $(bound) in
"" | vfio-pci | "$2") ;;
*) echo "foreign: $1 now has the driver $(bound)"; exit;;
esac
while [ "$(bound)" != "$2" ] || [ ! -b "$3" ]; do
    if [ "$(bound)" != "$2" ]; then
        done=removed
        echo "$2" >"$pci/driver_override"
        [ -e "$pci/driver" ] && echo "$1" >"$pci/driver/unbind"
        modprobe "$2" 2>/dev/null
        echo "$1" >/sys/bus/pci/drivers_probe
        echo >"$pci/driver_override"
    fi 2>/dev/null
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { now=$(bound); echo "its driver is ${now:-none}" >&2; exit 1; }
    sleep 0.1
done
! command -v udevadm >/dev/null || udevadm settle --timeout=20
echo "$done"
