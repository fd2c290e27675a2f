# $1: the log, $2: the run, $3: how long to wait for commands that create, $4: the end of the name of a file whose thing
# may no longer be created; then the files.
cd "$1/$2" && exec 8<. || exit
flock -x -w "$3" 8 || { echo "a command of the run that creates something has not ended yet" >&2; exit 1; }
over=$4; shift 4
for file; do
    closed=${file%%.*}$over
    [ ! -f "$file" ] || [ "$file" = "$closed" ] || mv -f "$file" "$closed" || exit
done
rm -f .*.json.*
sync .
