# shellcheck disable=SC2086 # lists of words
# $1: the volume, $2: its identity, empty if the run was killed before it recorded it, $3: where guests are configured,
# $4, $5: key and value of its storage if a feature locates it.
# Without containers, grep does not find their files, and its status says nothing.
users=$(grep -slwF -e "$1" "$3"/*/qemu-server/*.conf "$3"/*/lxc/*.conf)
[ -z "$users" ] || { echo "it is still attached:" $users "on the node" >&2; exit 1; }
if [ -n "$2" ]; then
    path=$(pvesm path "$1") && now=$(identity_of "$path" "${1#*:}" "$4" "$5") || exit
    # Earlier versions recorded the birth in whole seconds.
    [ "$now" = "$2" ] || [ "${now%.*}" = "$2" ] || { echo "foreign: $path is ($now), but ($2) was created"; exit 0; }
fi
[ -z "$4" ] || ( "release_volume_$4" "$5" "${1#*:}" ) || exit
pvesm free "$1" >&2 && echo removed
