# shellcheck disable=SC2046 # lists of words
# $1: the place, $2: where it is. Prints lines KEY=VALUE.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
refuse() { echo "$1" >&2; exit 1; }
case $1 in
volume_group)
    [ "$(lvm_fact vgs vg_missing_pv_count "$2")" = 0 ] || refuse "LVM does not report that all its disks are there"
    [ "$(lvm_fact vgs vg_permissions "$2")" = writeable ] || refuse "it is read-only"
    echo "extent=$(vgs --noheadings --nosuffix --units b -o vg_extent_size "$2" | tr -d ' ')"
    pvs --noheadings --nosuffix --units b --separator ' ' -o pv_name,pv_free --select "vg_name=$2" |
        while read -r device free; do echo "part=$free $device"; done;;
thin_pool)
    [ "$(lvm_fact lvs segtype "$2")" = thin-pool ] || refuse "it is not a thin pool"
    health=$(lvm_fact lvs lv_health_status "$2")
    [ -z "$health" ] || refuse "LVM reports $health"
    [ "$(lvm_fact lvs lv_active "$2")" = active ] || refuse "it is not active"
    echo "extent=$(vgs --noheadings --nosuffix --units b -o vg_extent_size "${2%%/*}" | tr -d ' ')"
    echo "chunk=$(lvs --noheadings --nosuffix --units b -o chunk_size "$2" | tr -d ' ')";;
directory)
    [ -d "$2" ] || refuse "there is no such directory"
    why=$(unsafe "$2") || refuse "its owners cannot be found out"
    [ -z "$why" ] || refuse "another user could exchange the files of a run there: $why"
    set -- "$1" "$2" $(findmnt --noheadings --output FSTYPE,OPTIONS,SOURCE --target "$2" | tail -n 1)
    case ,$4, in *,ro,*) refuse "it is mounted read-only";; esac
    echo "filesystem=$3"
    echo "source=$5"
    case $3 in btrfs)
        # Only with this attribute does a write stay in the blocks that the file has.
        case $(lsattr -d "$2" 2>/dev/null) in *C*\ *) ;; *) echo copies=2;; esac;;
    zfs) echo copies=2;;
    esac;;
*) "inspect_$1" "$2" || exit;; # of a feature
esac
case $1 in volume_group|thin_pool) echo "group=$(lvm_fact vgs vg_uuid "${2%%/*}")";; esac
echo "identity=$(identity_of "$1" "$2")"
