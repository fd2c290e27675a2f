# shellcheck disable=SC2154 # set by device_facts.sh
# $1: a partition. Prints its facts, and the UUID that the partition table has for it now. It stays open in between, so
# that both are about the same partition.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
exec 3<"$1" && facts_of "${1##*/}" && node=$(stat -L -c '%t %T' /proc/self/fd/3) || exit
[ "$number" = "$((0x${node% *})):$((0x${node#* }))" ] || { echo "$1 is another device node" >&2; exit 1; }
partuuid=$(blkid --probe --match-tag PART_ENTRY_UUID --output value "$1") || [ $? -eq 2 ] || exit
printf '%s\tblock\t%s\t%s\t%s\t%s\n%s\n' "$1" "$number" "$diskseq" "$sectors" "$identity" "$partuuid"
