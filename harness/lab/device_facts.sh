# shellcheck disable=SC2034 # read by the script that follows
# Shell functions. `facts_of NAME` sets number, diskseq, sectors and identity of the block device with that kernel name.
# It starts almost no processes, because on an emulated host each costs more than the reading. The identity is a serial
# number, the UUID of a device-mapper or md device, or the backing file of a loop device. The identity of a partition is
# the identity of its disk, and its first sector.
word() { # FILE: sets text to its first line, without blanks at the ends
    text=
    [ ! -r "$1" ] || { read -r text || :; } 2>/dev/null <"$1"
}
serial_of() { # NAME MAJOR:MINOR, of a whole device
    for file in dm/uuid md/uuid loop/backing_file serial device/serial; do
        word "/sys/class/block/$1/$file"
        [ -z "$text" ] || { identity=$text; return; }
    done
    identity=
    [ -r "/run/udev/data/b$2" ] || return 0
    while IFS= read -r line; do
        case $line in E:ID_SERIAL_SHORT=*) identity=${line#*=}; return;; esac
    done <"/run/udev/data/b$2"
}
facts_of() { # NAME
    at=/sys/class/block/$1
    [ -e "$at/dev" ] || return 1
    word "$at/size"; sectors=$text
    word "$at/dev"; number=$text
    if [ -e "$at/partition" ]; then
        disk=$(readlink -f "$at/..") || return 1
        disk=${disk##*/}
        word "/sys/class/block/$disk/dev"; serial_of "$disk" "$text"
        word "$at/start"; identity="$identity@$text"
        word "/sys/class/block/$disk/diskseq"; diskseq=$text
    else
        serial_of "$1" "$number"
        word "$at/diskseq"; diskseq=$text
    fi
}
