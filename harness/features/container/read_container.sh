# $1: the id of the container's first process. Prints what the kernel has of it, a line for each fact.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
pid=$1
group=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup") || exit 1
# Proxmox VE has its processes in a group below that with the limits.
case $group in /sys/fs/cgroup/lxc/*/ns) group=${group%/ns} ;; esac
echo "version=$(lxc-start --version)"
for name in cpuset.cpus.effective memory.max; do
    if read -r value 2>/dev/null <"$group/$name"; then echo "$name=$value"; fi
done
if read -r _ outside _ 2>/dev/null <"/proc/$pid/uid_map"; then echo "root=$outside"; fi
echo "seccomp=$(sed -n 's/^Seccomp:[[:space:]]*//p' "/proc/$pid/status")"
if read -r profile 2>/dev/null <"/proc/$pid/attr/current"; then echo "profile=$profile"; fi
exit 0
