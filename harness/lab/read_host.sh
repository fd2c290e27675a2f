# shellcheck disable=SC2086 # lists of words
# One line "key=value" each; a command that is missing leaves its value empty.
# $1: the programs to look for, $2: the kernel modules, $3: the program fio, $4: the file of the clock source.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin:/opt/MegaRAID/storcli:/opt/MegaRAID/perccli"
say() { printf '%s=%s\n' "$1" "$2"; }
first() { head -n 1 2>/dev/null; }
say hostname "$(uname -n)"
say kernel "$(uname -r)"
say os "$(. /etc/os-release 2>/dev/null; echo "$PRETTY_NAME")"
say os_id "$(. /etc/os-release 2>/dev/null; echo "$ID $ID_LIKE")"
say cpu "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | first)"
say cpus "$(grep -c ^processor /proc/cpuinfo)"
say memory_bytes "$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))"
say hypervisor "$(grep -qw hypervisor /proc/cpuinfo && { systemd-detect-virt --vm 2>/dev/null || echo unknown; })"
say governor "$(cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor 2>/dev/null)"
say clocksource "$(cat "$4" 2>/dev/null)"
say halt_poll_ns "$(cat /sys/module/kvm/parameters/halt_poll_ns 2>/dev/null)"
say smt "$(cat /sys/devices/system/cpu/smt/control 2>/dev/null)"
say mitigations "$(cd /sys/devices/system/cpu/vulnerabilities 2>/dev/null &&
    grep -H . * | grep -v 'Not affected' | sed 's/:/: /' | paste -sd';')"
say swap_bytes "$(($(sed -n 's/^SwapTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))"
grep -qw device-mapper /proc/devices || modprobe dm_mod 2>/dev/null
say device_mapper "$(grep -w device-mapper /proc/devices | first)"
say fio "$("$3" --version 2>/dev/null)"
say fio_program "$(command -v "$3")"
say perf "$(perf --version 2>/dev/null | first)"
say qemu "$( { qemu-system-x86_64 --version || /usr/libexec/qemu-kvm --version; } 2>/dev/null | first)"
say pve "$(pveversion 2>/dev/null)"
say libvirt "$(libvirtd --version 2>/dev/null || virtqemud --version 2>/dev/null)"
for tool in $1; do
    say "tool_$tool" "$(command -v $tool)"
done
# Loaded, built in, or loadable.
for module in $2; do
    if [ -d "/sys/module/$module" ] || modprobe -nq "$module" || grep -qw "$module" /proc/filesystems; then
        say "module_$module" yes
    fi
done 2>/dev/null
say user "$(id -u)"
