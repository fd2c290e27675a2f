# $1: a volume's path on the node, $2: its name on the storage; $3, $4: key and value of a storage that a feature locates.
# Prints its unique identity: an LV's UUID, a dataset's GUID, a file's inode and its birth time, because a new file gets
# the inode of a removed one.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
identity_of() {
    [ -z "$3" ] || { "identify_volume_$3" "$4" "$2"; return; }
    case $1 in
    /dev/zvol/*) zfs get -H -o value guid "${1#/dev/zvol/}";;
    /dev/*) lvs --noheadings -o lv_uuid "$1" | tr -d ' ' | grep .;;
    *) stat -c 'inode %i, born %.9W' "$1";;
    esac
}
