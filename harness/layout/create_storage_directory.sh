# $1: the new directory, $2: its token, $3: the file that holds the token; then the names of its files. `mkdir` fails if
# something has this name. QEMU's user must be able to enter the directory. The files are empty: what fills them keeps
# their inodes. Prints the directory's inode and birth time, whether its file system can preallocate, and for each file
# its name, inode and birth time.
umask 077
at=$1 token=$2 mark=$3; shift 3
mkdir -m 0711 "$at" && printf %s "$token" >"$at/$mark" && file_of "$at" || exit
fallocate -l 1 "$at/$mark" 2>/dev/null && echo yes || echo no
umask 022
set -C
for file; do : >"$at/$file" && echo "$file $(file_of "$at/$file")" || exit; done
