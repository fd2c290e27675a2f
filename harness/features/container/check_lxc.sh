# Whether the host can run containers of LXC, a line for each fact: the version, the control groups.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
echo "version=$(lxc-start --version 2>/dev/null)"
echo "groups=$(stat -f -c %T /sys/fs/cgroup 2>/dev/null)"
[ ! -r /usr/share/lxc/config/common.conf ] || echo common=yes
