# $1: the rule's file, $2: the kernel's name of the disk, or empty. The rules are on standard input. The file never
# replaces another one. The disk is triggered, because its watch has begun already.
export PATH="$PATH:/usr/sbin:/sbin"
mkdir -p "${1%/*}" && set -C && cat >"$1" || exit
udevadm control --reload || exit
[ -z "$2" ] || udevadm trigger --action=change --settle "/sys/class/block/$2"
