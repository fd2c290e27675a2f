# shellcheck disable=SC2154 # set by device_facts.sh
# Paths. For each, a line: the path, its real path, and `block` with the facts or `file` with device and inode.
export PATH="$PATH:/usr/sbin:/sbin"
for path; do
    real=$(readlink -e "$path") || { echo "there is no $path" >&2; exit 1; }
    if [ -b "$real" ]; then
        facts_of "${real##*/}" || { echo "the kernel does not know $real" >&2; exit 1; }
        printf '%s\tblock\t%s\t%s\t%s\t%s\n' "$real" "$number" "$diskseq" "$sectors" "$identity"
    elif [ -f "$real" ]; then
        printf '%s\tfile\t%s\n' "$real" "$(stat -c '%d:%i' "$real")"
    else echo "$path is neither a block device nor a file" >&2; exit 1; fi
done
