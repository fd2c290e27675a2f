# $1: the file, $2: its inode and birth time, empty if they were not recorded yet: then nothing was written to it.
[ -f "$1" ] && [ ! -L "$1" ] || exit 0
if [ -n "$2" ]; then [ "$(file_of "$1")" = "$2" ]; else [ ! -s "$1" ]; fi || exit 0
rm -f "$1"
