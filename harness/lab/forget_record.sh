# $1: the log, $2: the run, $3: the file, $4: its name when nothing may be created any more.
rm -f "$1/$2/$3" "$1/$2/$4" "$1/$2/.$3".* && [ -d "$1/$2" ] || exit 0
rmdir --ignore-fail-on-non-empty "$1/$2" && sync "$1"
