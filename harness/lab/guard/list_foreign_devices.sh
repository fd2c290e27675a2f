# $1: the number of bases, then their kernel names; then kernel names of devices. Prints each device that is not only on
# the bases. A device is on its slaves (device-mapper, md); a partition is on its disk.
bases=" "; count=$1; shift
while [ "$count" -gt 0 ]; do bases="$bases$1 "; shift; count=$((count - 1)); done
is_on() { # NAME
    case $bases in *" $1 "*) return 0;; esac
    if [ -e "/sys/class/block/$1/partition" ]; then
        set -- "$(readlink -f "/sys/class/block/$1/..")"
        is_on "${1##*/}"
        return
    fi
    ls "/sys/class/block/$1/slaves" 2>/dev/null | {
        none=yes
        while read -r below; do none=; is_on "$below" || exit 1; done
        [ -z "$none" ]
    }
}
for name; do
    case $name in
    [0-9]*) device=$(readlink -e "/sys/dev/block/$name") && is_on "${device##*/}" || echo "$name";;
    *) is_on "$name" || echo "$name";;
    esac
done
