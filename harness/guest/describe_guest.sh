# shellcheck disable=SC2154 # value is set by first(), of guest_system.py
# $1: the program fio. The guest image reports no distribution.
os=$(. /etc/os-release 2>/dev/null; echo "$PRETTY_NAME")
[ -z "$os" ] || echo "os=$os"
first /proc/sys/kernel/osrelease
echo "kernel=$value"
first /run/hypervisor
echo "hypervisor=${value:-$(LC_ALL=C lscpu 2>/dev/null | sed -n 's/^Hypervisor vendor: *//p')}"
echo "cpu=$(sed -n '/^model name/{s/^[^:]*: //p;q}' /proc/cpuinfo)"
echo "cpus=$(grep -c ^processor /proc/cpuinfo)"
ranges=$(sed -n 's/^\([0-9a-f]*\)-\([0-9a-f]*\) : System RAM$/0x\2-0x\1+1/p' /proc/iomem | tr '\n' '+')
echo "memory_bytes=$((${ranges}0))"
first /sys/devices/system/clocksource/clocksource0/current_clocksource
echo "clocksource=$value"
first /sys/devices/system/clocksource/clocksource0/available_clocksource
echo "clocksources=$value"
# How its CPUs wait. The files of the governor have two names.
first /sys/devices/system/cpu/cpuidle/current_driver
echo "idle_driver=$value"
first /sys/devices/system/cpu/cpuidle/current_governor
[ -n "$value" ] || first /sys/devices/system/cpu/cpuidle/current_governor_ro
echo "idle_governor=$value"
first /proc/cmdline
echo "idle_words=$(echo "$value" | tr ' ' '\n' | grep '^idle=' | tr '\n' ' ')"
first /sys/module/haltpoll/parameters/guest_halt_poll_ns
echo "haltpoll_ns=$value"
first /sys/class/dmi/id/sys_vendor
vendor=$value
first /sys/class/dmi/id/product_name
echo "dmi=$vendor $value"
echo "fio=$("$1" --version)"
echo "fio_program=$(command -v "$1")"
