# shellcheck disable=SC2086 # lists of words
# $1 root of the tree to read, $2 seconds to watch, $3 directory of the lease, then for each disk `id` or `file` and its
# path. Prints sections "#NAME" of lines "PATH:LINE", as grep does: no path that is read contains a colon.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
root=$1 window=$2 lease=$3
cd "$root/" || exit
shift 3
show() { grep -sH '' "$@"; }

echo '#files'
cpu=sys/devices/system/cpu
show proc/filesystems proc/mounts sys/kernel/tracing/events/block/block_rq_issue/id \
    sys/kernel/tracing/events/kvm/kvm_msi_set_irq/id
show proc/loadavg proc/meminfo proc/swaps proc/cmdline proc/sys/kernel/numa_balancing ".$lease/tuned" \
    proc/sys/vm/dirty_ratio proc/sys/vm/dirty_bytes proc/sys/vm/dirty_background_ratio \
    proc/sys/vm/dirty_background_bytes
show $cpu/cpufreq/policy*/scaling_governor $cpu/cpufreq/policy*/scaling_available_governors \
    $cpu/cpufreq/policy*/energy_performance_preference $cpu/cpufreq/boost $cpu/intel_pstate/no_turbo \
    $cpu/smt/control $cpu/smt/active $cpu/vulnerabilities/* \
    $cpu/cpu0/cpuidle/state*/name $cpu/cpu0/cpuidle/state*/latency $cpu/cpu0/cpuidle/state*/disable \
    $cpu/cpuidle/current_driver $cpu/cpuidle/current_governor $cpu/cpuidle/current_governor_ro \
    sys/module/haltpoll/parameters/guest_halt_poll_ns
show sys/devices/system/clocksource/clocksource0/current_clocksource sys/devices/system/node/node*/cpulist
show sys/kernel/mm/ksm/run sys/kernel/mm/transparent_hugepage/enabled sys/kernel/mm/transparent_hugepage/defrag
show sys/module/kvm_intel/parameters/nested sys/module/kvm_amd/parameters/nested \
    sys/module/kvm/parameters/halt_poll_ns sys/module/pcie_aspm/parameters/policy
# If the directory is not locked, the lease file was left by a run that has ended.
if [ -d ".$lease" ]; then
    flock --shared --nonblock --conflict-exit-code 75 9 9<".$lease"
    [ $? -ne 75 ] || echo "${lease#/}/lease:$(head -n 1 ".$lease/lease" || echo 'a run that has no name yet')"
fi 2>/dev/null
if [ -r dev/kvm ] && [ -w dev/kvm ]; then echo dev/kvm:open; elif [ -e dev/kvm ]; then echo dev/kvm:closed; fi

echo '#disks'
stats='' number=0
while [ $# -ge 2 ]; do
    device=.$2
    if [ "$1" = file ]; then # the disk below the file system that the file is on, or will be
        [ -e "$device" ] || device=$(dirname "$device")
        device=$(df -P "$device" 2>/dev/null | sed -n '2s/ .*//p')
    fi
    name=$(readlink -f "$device") name=${name##*/}
    if [ -e "sys/class/block/$name/partition" ]; then
        name=$(readlink -f "sys/class/block/$name") name=${name%/*} name=${name##*/}
    fi
    if [ -n "$name" ] && [ -d "sys/block/$name/queue" ]; then
        echo "$number/name:$name"
        queue=sys/block/$name/queue
        show $queue/scheduler $queue/nr_requests $queue/rotational $queue/write_cache $queue/rq_affinity \
            $queue/nomerges $queue/iostats $queue/wbt_lat_usec $queue/iosched/*
        stats="$stats sys/block/$name/stat"
        at=$(readlink -f "sys/block/$name") # go up its buses to the disk's controller
        while [ -n "$at" ] && [ "$at" != / ]; do
            cat "$at/numa_node" 2>/dev/null | sed "s,^,$number/numa:,"
            cat "$at"/scsi_host/*/link_power_management_policy 2>/dev/null | sed "s,^,$number/link:,"
            at=${at%/*}
        done
    fi
    number=$((number + 1))
    shift 2
done

echo '#guests'
for file in $(grep -lsaE '[q]emu-system-|[q]emu-kvm|[/]kvm' proc/[0-9]*/cmdline); do
    printf '%s:%s\n' "$file" "$(tr '\0\n' '\t ' <"$file" 2>/dev/null)"
done

busy() { grep -sH '^cpu ' proc/stat; }
others() { show proc/[0-9]*/stat $stats; grep -sH '^pswp' proc/vmstat; }
echo '#before'
others; busy # and in reverse order below, so that the watched time does not include reading the others
sleep "$window"
echo '#after'
busy; others
echo '#end'
