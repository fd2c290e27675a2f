# shellcheck disable=SC2154 # md is set in rebuild.py
# $1: the array, $2: the member. For a moment after it has failed, md still uses it. mdadm would add a device with a
# superblock again, and recover only what its bitmap lists. udev may have the device open for a moment.
again() { # COMMAND
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        errors=$("$@" 2>&1) && return
        sleep 0.2
    done
    echo "$errors" >&2
    exit 1
}
again mdadm --manage --quiet "$1" --fail "$2"
again mdadm --manage --quiet "$1" --remove "$2"
again mdadm --quiet --zero-superblock "$2"
! command -v udevadm >/dev/null || udevadm settle --timeout=20
[ "$(cat "$md/degraded")" = 1 ] || { echo "$1 has $(cat "$md/degraded") missing members instead of 1" >&2; exit 1; }
