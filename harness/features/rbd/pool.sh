# shellcheck disable=SC2086 # lists of words
# Shell functions for a pool of Ceph, given as `POOL[:id=USER][:conf=FILE][:secret=UUID]`. On a node of Proxmox VE, it also
# has what the node's plugin uses: `namespace=`, `mons=` with %3A for a colon, and two files that need not exist.
use_pool() { # AT: sets pool, the place of its images, and the options of Ceph's commands
    pool=${1%%:*} images=$pool
    CEPH_ARGS=--client_mount_timeout=60
    for word in $(printf '%s' "$1" | tr : ' '); do
        case $word in
        id=*) CEPH_ARGS="$CEPH_ARGS --id ${word#*=}";;
        conf=*) CEPH_ARGS="$CEPH_ARGS --conf ${word#*=}";;
        own_conf=*) [ ! -e "${word#*=}" ] || CEPH_ARGS="$CEPH_ARGS --conf ${word#*=}";;
        keyring=*)
            if [ -e "${word#*=}" ]; then CEPH_ARGS="$CEPH_ARGS --keyring ${word#*=}"
            else CEPH_ARGS="$CEPH_ARGS --auth_supported none"; fi;;
        mons=*) CEPH_ARGS="$CEPH_ARGS --mon_host $(printf '%s' "${word#*=}" | sed 's/%3A/:/g')";;
        namespace=*) images=$pool/${word#*=};;
        esac
    done
    export CEPH_ARGS
}
read_pool() { # sets fsid, the pool's number and settings (both empty if there is none), and the number of OSDs
    dump=$(ceph osd dump) || return
    fsid=$(printf '%s\n' "$dump" | sed -n 's/^fsid //p')
    osds=$(printf '%s\n' "$dump" | grep -c '^osd\.') || :
    set -- "$(printf '%s\n' "$dump" | while read -r word number name settings; do
        [ "$word $name" != "pool '$pool'" ] || echo "$number $settings"
    done)"
    number=${1%% *} settings=${1#* }
}
identify_rbd() { # AT
    use_pool "$1"
    read_pool || return
    [ -z "$number" ] || echo "$fsid/$number"
}
inspect_rbd() { # AT
    for tool in ceph rbd; do
        command -v "$tool" >/dev/null || refuse "$tool is not installed there: apt-get install ceph-common"
    done
    use_pool "$1"
    read_pool || refuse "its cluster does not tell which pools it has"
    [ -n "$number" ] || refuse "cluster $fsid has no pool with this name"
    case $settings in replicated\ *) ;; *) refuse "it is not replicated, so it cannot have the metadata of images";; esac
    case " ${settings#*application } " in *[\ ,]rbd[\ ,]*) ;; *) refuse "it is not meant for images: rbd pool init $pool";; esac
    replicas=${settings#*size }
    echo "fact cluster=$fsid"
    echo "fact replicas=${replicas%% *}"
    qemu_opens_images && echo "fact librbd=yes" || echo "fact librbd=no"
    echo "disks=$(list_osd_disks)"
}
qemu_opens_images() {
    # There is no such image. QEMU without the driver says so before it looks for it.
    case $(qemu-img info "rbd:none/none:conf=/dev/null" 2>&1) in *oad\ module*|*nknown\ protocol*|*not\ found*) return 1;; esac
}
list_osd_disks() { # the disks of all OSDs of the cluster, if all are on this host; nothing if one is elsewhere
    here=0 disks=
    for osd in /var/lib/ceph/osd/*-[0-9]* "/var/lib/ceph/$fsid"/osd.[0-9]*; do
        [ "$(cat "$osd/ceph_fsid" 2>/dev/null)" = "$fsid" ] || continue
        here=$((here + 1))
        for device in "$osd"/block "$osd"/block.db "$osd"/block.wal; do
            [ -b "$device" ] || continue
            disks="$disks $(lsblk --noheadings --inverse --list --output KNAME,TYPE "$(readlink -f "$device")" |
                sed -n 's/ *disk$//p' | tr '\n' ' ')"
        done
    done
    [ "$here" -ne "$osds" ] || printf '%s\n' $disks | sort -u | tr '\n' ' '
}
space_rbd() { # STORAGE AT
    use_pool "$2"
    facts=$(ceph df detail --format json) || return
    facts=$(printf '%s\n' "$facts" | sed 's/{"name":/\n&/g' | grep -F "{\"name\":\"$pool\",")
    stored=$(count_of stored) free=$(count_of max_avail) quota=$(count_of quota_bytes)
    [ -n "$stored" ] && [ -n "$free" ] || { echo "Ceph does not report the free space of pool $pool" >&2; return 1; }
    if [ "${quota:-0}" -gt 0 ] && [ $((quota - stored)) -lt "$free" ]; then free=$((quota - stored)); fi
    put "$1" own "Ceph pool $2" "Ceph pool $pool" "$((stored + free))" "$free"
}
count_of() { printf '%s\n' "$facts" | sed -n "s/.*\"$1\":\([0-9]*\)[,}].*/\1/p"; }
# Volumes of Proxmox VE, whose names are not random.
identify_volume_rbd() { # AT IMAGE
    use_pool "$1"
    read_pool || return
    facts=$(rbd info --format json "$images/$2") || return
    id=$(printf '%s\n' "$facts" | sed -n 's/.*"id":"\([0-9a-f]*\)".*/\1/p')
    [ -n "$id" ] || { echo "Ceph does not report the id of $images/$2" >&2; return 1; }
    echo "image $id in $fsid/$number"
}
release_volume_rbd() { # AT IMAGE: unmaps it if the kernel of the node has mapped it, and waits until nobody has it open
    use_pool "$1"
    read_pool || return
    snapshots=$(rbd snap ls --format json "$images/$2") || return
    # Proxmox VE would remove them as well.
    [ "$snapshots" = "[]" ] || { echo "somebody has made snapshots of it: rbd snap ls $images/$2" >&2; return 1; }
    if mapped=$(readlink -e "/dev/rbd-pve/$fsid/$images/$2"); then
        # udev may still read from it, because fio has closed it after writing.
        udevadm settle --timeout=20
        rbd unmap "$mapped" || { sleep 5; rbd unmap "$mapped"; } || return
    fi
    # The cluster forgets a client that was killed half a minute later.
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        watchers=$(rbd status --format json "$images/$2") || return
        case $watchers in *'"watchers":[]'*) return;; esac
        sleep 5
    done
    echo "another client still has it open: rbd status $images/$2" >&2
    return 1
}
