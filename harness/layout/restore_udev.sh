# $1: the rule's file, $2: its first line, $3: the kernel's name of the disk, which gets its watch back, or empty.
[ -e "$1" ] || { echo absent; exit; }
# The host may have stopped while the file was written.
read -r first <"$1" || case $2 in "$first"*) first=$2;; esac
[ "$first" = "$2" ] || { echo "replaced: $1 is another file"; exit; }
rm -f "$1" && udevadm control --reload || exit
[ -z "$3" ] || [ ! -e "/sys/class/block/$3" ] || udevadm trigger --action=change --settle "/sys/class/block/$3" || exit
echo removed
