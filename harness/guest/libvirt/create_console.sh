# $1: the file. libvirt's daemon and QEMU write into the file that is there.
umask 077
mkdir -p "${1%/*}" && set -C && : >"$1" && file_of "$1"
