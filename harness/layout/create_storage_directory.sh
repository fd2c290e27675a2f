# $1: the new directory, $2: its token, $3: the file that holds the token, $4: the attributes of files on btrfs, which
# only an empty file gets, as ` NAME=+C NAME=-C `; then the names of its files. `mkdir` fails if
# something has this name. QEMU's user must be able to enter the directory. The files are empty: what fills them keeps
# their inodes. Prints the directory's inode and birth time, whether its file system can preallocate, and for each file
# its name, inode and birth time.
umask 077
at=$1 token=$2 mark=$3 attributes=$4; shift 4
mkdir -m 0711 "$at" && printf %s "$token" >"$at/$mark" && file_of "$at" || exit
fallocate -l 1 "$at/$mark" 2>/dev/null && echo yes || echo no
umask 022
set -C
for file; do
    : >"$at/$file" || exit
    case $attributes in *" $file="*) sign=${attributes#*" $file="} && chattr "${sign%% *}" "$at/$file" || exit;; esac
    echo "$file $(file_of "$at/$file")" || exit
done
