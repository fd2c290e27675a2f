# $1: the number of bytes on standard input, $2: WRAPPED; then the command. No program is started for the check.
export LC_ALL=C
size=$1; shift 2
content=$(cat; echo .)
content=${content%.}
[ "${#content}" -eq "$size" ] ||
    { echo "not started: only ${#content} of $size bytes of its input arrived" >&2; exit 1; }
printf %s "$content" | "$@"
