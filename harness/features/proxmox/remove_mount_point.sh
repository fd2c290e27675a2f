# $1: a mount point. Removes neither a directory with contents nor one on which something is mounted.
ls -d "$1" >/dev/null 2>&1 || exit 0
find "$1" -maxdepth 0 -type d -delete
