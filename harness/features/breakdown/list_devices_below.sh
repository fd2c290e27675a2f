# Arguments: paths of block devices, or of files on one. Prints the numbers of each device and of those below it.
export PATH="$PATH:/usr/sbin:/sbin"
walk() {
    [ -e "$1/dev" ] || return 0
    cat "$1/dev"
    if [ -e "$1/partition" ]; then walk "${1%/*}"; fi
    for below in "$1"/slaves/*; do [ ! -e "$below" ] || walk "$(readlink -f "$below")"; done
}
for path; do
    [ -b "$path" ] || path=$(df -P "$path" | sed -n '2s/ .*//p')
    name=$(readlink -f "$path")
    walk "$(readlink -f "/sys/class/block/${name##*/}")"
done
