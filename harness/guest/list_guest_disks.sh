# shellcheck disable=SC2086 # lists of words
# One line per disk: name, serial (virtio-blk has an attribute, SCSI and ATA the vital product data page), attributes.
# The first two drivers above the disk: its own (sd, virtio_blk, nvme), and the driver of its controller or bus.
for dir in /sys/block/*; do
    [ -e "$dir/device" ] || continue
    first "$dir/serial"
    [ -n "$value" ] || value=$(tail -c +5 "$dir/device/vpd_pg80" 2>/dev/null | tr -d '\000')
    [ -n "$value" ] || first "$dir/device/serial"
    case $value in *' '*) value=$(echo "$value" | tr -d ' ');; esac
    printf '%s\t%s' "${dir##*/}" "$value"
    for key in scheduler rotational write_cache logical_block_size physical_block_size nr_requests discard_max_bytes; do
        first "$dir/queue/$key"
        printf '\t%s' "$value"
    done
    first "$dir/ro"
    printf '\t%s' "$value"
    set -- "$dir"/mq/*
    [ -e "$1" ] || shift
    first "$dir/mq/0/nr_tags"
    printf '\t%s\t%s' "$#" "$value"
    drivers= features=
    # With native multipath, the namespace of an NVMe disk is not below a device, but its controllers are.
    for at in "$dir"/device/nvme[0-9]*/device "$dir/device"; do [ -e "$at" ] && break; done
    at=$(readlink -f "$at")
    while [ "${at#/sys/devices/}" != "$at" ]; do
        if [ -e "$at/driver" ]; then
            driver=$(readlink "$at/driver")
            drivers="$drivers ${driver##*/}"
        fi
        first "$at/features"
        features=${features:-$value}
        at=${at%/*}
    done
    set -- $drivers
    printf '\t%s\t%s\t%s\n' "$1" "${2:-$1}" "$features"
done
