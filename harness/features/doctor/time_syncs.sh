# $1 directory, $2 the program fio, then the kernel's names of the disks below. Prints what each disk says of its cache,
# whether it is on a network, and what keeps syncs from the disk, then the JSON of fio. The file has no name while fio
# writes to it, so nothing remains even if this is killed.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
directory=$1 fio=$2
shift 2
read_first() { head -n 1 "$1" 2>/dev/null | tr -s ' ' | sed 's/ $//'; }
for disk; do
    at=/sys/block/$disk
    network=
    case $(readlink -f "$at/device") in */session[0-9]*) network=iSCSI;; esac
    for file in "$at"/device/transport "$at"/device/nvme*/transport; do
        case $(read_first "$file") in ''|pcie) ;; *) network=NVMe/$(read_first "$file");; esac
    done
    printf 'disk\t%s\t%s\t%s\t%s\t%s\t%s\n' "$disk" "$(read_first "$at/queue/rotational")" \
        "$(read_first "$at/queue/write_cache")" "$(read_first "$at/queue/fua")" "$(read_first "$at/device/model")" "$network"
    # The cache of the disk itself, which the kernel's setting may contradict: then no flush is sent.
    case $(cat "$at"/device/scsi_disk/*/cache_type 2>/dev/null) in "write back"*)
        [ "$(read_first "$at/queue/write_cache")" != "write through" ] ||
            printf 'ignored\tqueue/write_cache of %s is set to write through, but the disk has a volatile cache\n' "$disk";;
    esac
done
mount=$(findmnt --noheadings --output FSTYPE,SOURCE,OPTIONS --target "$directory" | tail -n 1)
case ,${mount##* }, in
*,nobarrier,*|*,barrier=0,*|*,volatile,*) printf 'ignored\tthe file system is mounted with %s\n' "${mount##* }";;
esac
case $mount in zfs\ *)
    dataset=$(findmnt --noheadings --nofsroot --output SOURCE --target "$directory")
    [ "$(zfs get -H -o value sync "$dataset" 2>/dev/null)" != disabled ] ||
        printf 'ignored\tsync is disabled on the dataset %s\n' "$dataset";;
esac
file=$(umask 077; mktemp "$directory/.virt-overhead-sync.XXXXXX") || exit
exec 9<>"$file" || exit
rm -f "$file"
# Written once before, so that the timed writes change no metadata of the file system.
dd if=/dev/zero of=/proc/self/fd/9 bs=64k count=16 conv=fsync status=none || exit
exec "$fio" --name=sync --filename=/proc/self/fd/9 --size=1m --overwrite=1 --rw=write --bs=4k --ioengine=psync \
    --fdatasync=1 --runtime=2 --time_based --thread --output-format=json
