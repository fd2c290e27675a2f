# $1: the log, $2: the most bytes of a record. A line for each file: its name below the log, and its content as base64.
# The name of a file that is not ours may have any characters: then it is `=` and base64. Root does what the log says,
# so nobody else may have written it.
[ -d "$1" ] || exit 0
why=$(unsafe "$1") || exit
[ -z "$why" ] || { echo "$why" >&2; exit 3; }
cd "$1" && command -v base64 >/dev/null || exit
for file in */*; do
    [ -f "$file" ] || continue
    case $file in
    *[!A-Za-z0-9._/-]*) name="=$(printf %s "$file" | base64 -w 0)";;
    *) name=$file;;
    esac
    printf '%s ' "$name"
    head -c "$2" -- "$file" 2>/dev/null | base64 -w 0
    echo
done
