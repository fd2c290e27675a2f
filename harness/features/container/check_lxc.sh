# Whether the host can run containers of LXC, a line for each fact: the version, the control groups, and for unprivileged
# ones the users and groups that root may give away, if a program of the host asks for that.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
echo "version=$(lxc-start --version 2>/dev/null)"
echo "groups=$(stat -f -c %T /sys/fs/cgroup 2>/dev/null)"
[ ! -r /usr/share/lxc/config/common.conf ] || echo common=yes
if command -v newuidmap >/dev/null; then
    for file in subuid subgid; do
        echo "$file=$(sed -n 's/^\(root\|0\)://p' "/etc/$file" 2>/dev/null | tr '\n' ' ')"
    done
fi
