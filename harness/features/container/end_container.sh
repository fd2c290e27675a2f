# shellcheck disable=SC2034 # read by remove_container.sh
# $1: the variable that marks the processes of the container, $2: its directory, $3: its name.
# First in LXC's own way, which also removes the control groups.
ended=
if [ -d "$2/$3" ] && lxc-stop --lxcpath "$2" --name "$3" --kill 2>/dev/null; then ended=removed; fi
