# shellcheck disable=SC2154 # set by the script that follows
# Shell function: `ours_at PATH` is true for the file of the run. $inode is `INODE BIRTH` as it was recorded. On a
# file system without birth times, its draft stays beside it as a second link: then the inode cannot be used again.
ours_at() {
    [ -f "$1" ] && [ ! -L "$1" ] && [ -n "$inode" ] && [ "$(file_of "$1")" = "$inode" ] || return
    case $inode in *" 0") [ "$draft" -ef "$path" ] || [ "$1" = "$draft" ];; esac
}
