# $1: the directory of the new disk, then KEY=VALUE in the order in which to write them.
export PATH="$PATH:/usr/sbin:/sbin"
mkdir "$1" && cd "$1" && shift || exit 1
for setting; do echo "${setting#*=}" >"${setting%%=*}" || exit 1; done
! command -v udevadm >/dev/null || udevadm settle --timeout=20
