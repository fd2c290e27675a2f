# $1: a disk or an array. lsblk's list of it and its partitions, in bytes.
export PATH="$PATH:/usr/sbin:/sbin"
! command -v udevadm >/dev/null || udevadm settle --timeout=20
lsblk -J -b -o NAME,PATH,TYPE,START,SIZE "$1"
