# $1: the directory, $2: what identifies the directory that it is in, $3: its token, $4: the file that holds it, $5: its
# inode and birth time, empty if they were not recorded yet, $6: those of its files, as `:NAME INODE BIRTH:...:`; then
# the names of its files. A file that was not recorded yet is empty. If the storage is not mounted, the directory there
# is another one.
set -f
at=$1 storage=$2 token=$3 mark=$4 inode=$5 made=$6; shift 6
of_others() { echo "$1: move what is not the run's out of it" >&2; exit 1; }
now=$(identity_of directory "${at%/*}") || { echo "the storage ${at%/*} cannot be reached" >&2; exit 1; }
[ "$now" = "$storage" ] || { echo "${at%/*} is not the storage, which may not be mounted" >&2; exit 1; }
[ -e "$at" ] || [ -L "$at" ] || { echo absent; exit; }
[ -d "$at" ] && [ ! -L "$at" ] || { echo "replaced: $at is not a directory"; exit; }
found=$(file_of "$at") || exit
[ -z "$inode" ] || [ "$found" = "$inode" ] || { echo "replaced: $at was created later"; exit; }
listed=$(ls -A "$at") || exit
for file in $listed; do
    case " $* $mark " in *" $file "*) ;; *) of_others "somebody has put $file into $at";; esac
    case $made in
    *":$file $(file_of "$at/$file"):"*) ;;
    *) [ "$file" = "$mark" ] || { [ -z "$inode" ] && [ ! -s "$at/$file" ]; } ||
        of_others "somebody has replaced $at/$file";;
    esac
done
if [ -e "$at/$mark" ]; then
    # It may have been written in part only, before the inode was recorded.
    content=$(cat "$at/$mark") || exit
    [ "$content" = "$token" ] || [ -z "$inode" ] || of_others "$at/$mark has another content"
elif [ -n "$listed" ]; then of_others "$at has no $mark"
fi
cd "$at" && rm -f -- "$@" && rm -f -- "$mark" && cd / && rmdir "$at" && echo removed
