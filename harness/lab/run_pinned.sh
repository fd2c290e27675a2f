# shellcheck disable=SC2154 # set by device_facts.sh
# $1: a condition that must be true, $2: the number of pins that follow, each a path and its expected facts; then the
# command. Every device stays open while the command runs: meanwhile the kernel gives its name and number to no other
# device.
changed() { echo "$1" >&2; exit 90; }
eval "$1" || changed "this run has lost its lease of the host"
shift
check() { # PATH EXPECTED DESCRIPTOR
    case $2 in
    file:*) now=$(stat -L -c file:%d:%i "/proc/self/fd/$3") || changed "$1 is gone";;
    *)
        node=$(stat -L -c '%t %T' "/proc/self/fd/$3") && facts_of "${1##*/}" || changed "$1 is gone"
        [ "$number" = "$((0x${node% *})):$((0x${node#* }))" ] || changed "$1 is another device node"
        now="$number $diskseq $sectors $identity";;
    esac
    [ "$now" = "$2" ] || changed "$1 was ($2) and is ($now) now"
}
pins=$1 descriptor=3; shift
while [ "$pins" -gt 0 ]; do
    # Descriptors above 9 cannot be written as one digit; the last ones are checked as well, but not held open.
    [ "$descriptor" -le 9 ] || descriptor=9
    [ -e "$1" ] || changed "$1 is gone"
    case $descriptor in # without `command`, a failure would end the shell
    3) command exec 3<"$1";; 4) command exec 4<"$1";; 5) command exec 5<"$1";; 6) command exec 6<"$1";;
    7) command exec 7<"$1";; 8) command exec 8<"$1";; 9) command exec 9<"$1";;
    esac 2>/dev/null || changed "$1 cannot be opened"
    check "$1" "$2" "$descriptor"
    shift 2
    descriptor=$((descriptor + 1)) pins=$((pins - 1))
done
"$@" 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
