# $1: the file, $2: a unique name in the same directory, $3: its size. The file gets its final name only after it is in
# the log with its identity, and never replaces another file. Prints its inode and birth time.
umask 077
set -C
: >"$2" && truncate -s "$3" "$2" && file_of "$2"
