# $1: a device or a file. Prints cryptsetup's status of each encrypted device that it is or that it is on.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
from=$1
[ -b "$from" ] || from=$(findmnt -n -o SOURCE -T "$from") || exit
lsblk -s -n -r -o NAME,TYPE "$from" | while read -r name type; do
    [ "$type" != crypt ] || cryptsetup status "$name" || exit
done
