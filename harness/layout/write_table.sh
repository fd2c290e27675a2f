# $1: the device, $2: `unused` for a disk that must be as the guard found it. Somebody may have begun to use it since, and
# udev may have it for a moment. An array or volume group that was in a region before must not be activated when the
# region appears.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
used() { echo "since the guard checked it, somebody began to use $1" >&2; exit 90; }
if [ "$2" = unused ]; then
    free=
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        why=$(require_free "$1" 2>&1) && free=yes && break
        sleep 0.1
    done
    [ "$free" ] || used "${why:-$1}"
    signatures=$(wipefs --noheadings --output TYPE "$1" 2>&1) || used "$1, or it cannot be read: $signatures"
    [ -z "$signatures" ] || used "$1: there is a signature on it: $signatures"
fi
sfdisk --quiet --wipe always --wipe-partitions always "$1"
