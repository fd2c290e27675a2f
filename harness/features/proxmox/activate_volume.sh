# $1: a volume's path. PVE creates active volumes. udev creates the link of a zvol, perhaps with a delay.
export PATH="$PATH:/usr/sbin:/sbin"
[ -e "$1" ] || udevadm settle --timeout=20
[ -e "$1" ] || lvchange --activate y --ignoreactivationskip "$1"
