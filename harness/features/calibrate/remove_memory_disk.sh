# $1: the directory of the disk, $2: the id of the boot in which it was created. The disk does not survive a reboot.
[ -d "$1" ] || { echo absent; exit; }
read -r boot </proc/sys/kernel/random/boot_id
[ "$boot" = "$2" ] || { echo "foreign: $1 was created after the host was rebooted"; exit; }
echo 0 >"$1/power" && rmdir "$1" && echo removed
