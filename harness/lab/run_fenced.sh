# $1: the log, $2: the run, $3: the file, $4: WRAPPED; then a command. It does not get the lock: a daemon would hold it.
exec 8<"$1/$2" && flock -s 8 || exit
[ -f "$1/$2/$3" ] || { echo "nothing is created, because its clean-up has begun" >&2; exit 1; }
shift 4
"$@" 8<&-
