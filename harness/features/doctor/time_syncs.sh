# $1 directory, $2 the program fio, then the kernel's names of the disks below. Prints what each disk says of its cache,
# then the JSON of fio. The file has no name while fio writes to it, so nothing remains even if this is killed.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
directory=$1 fio=$2
shift 2
read_first() { head -n 1 "$1" 2>/dev/null | tr -s ' ' | sed 's/ $//'; }
for disk; do
    at=/sys/block/$disk
    printf 'disk\t%s\t%s\t%s\t%s\t%s\n' "$disk" "$(read_first "$at/queue/rotational")" \
        "$(read_first "$at/queue/write_cache")" "$(read_first "$at/queue/fua")" "$(read_first "$at/device/model")"
done
file=$(umask 077; mktemp "$directory/.virt-overhead-sync.XXXXXX") || exit
exec 9<>"$file" || exit
rm -f "$file"
# Written once before, so that the timed writes change no metadata of the file system.
dd if=/dev/zero of=/proc/self/fd/9 bs=64k count=16 conv=fsync status=none || exit
exec "$fio" --name=sync --filename=/proc/self/fd/9 --size=1m --overwrite=1 --rw=write --bs=4k --ioengine=psync \
    --fdatasync=1 --runtime=2 --time_based --thread --output-format=json
