# $1: a condition that must be true, $2: the place, $3: where it is, $4: its identity; then the command.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
eval "$1" || { echo "this run has lost its lease of the host" >&2; exit 90; }
now=$(identity_of "$2" "$3")
[ "$now" = "$4" ] || { echo "$3 was ($4) and is ($now) now" >&2; exit 90; }
shift 4
"$@"
