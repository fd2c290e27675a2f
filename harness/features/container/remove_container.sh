for group in "/sys/fs/cgroup/lxc.payload.$3" "/sys/fs/cgroup/lxc.monitor.$3"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + || exit
done
if [ -d "$2" ]; then
    # Its mounts are in a name space of its own, and end with it. What they were on is empty: places, files and links.
    ! grep -qF " $2/" /proc/self/mounts || { echo "something is mounted in $2" >&2; exit 1; }
    rm -rf "$2/$3/apparmor" && rm -f "$2/log" "$2/pid" "$2/$3/config" && find "$2" -xdev -depth \( -empty -o -type l \) -delete || exit
    ended=removed
    [ ! -d "$2" ] || ended="foreign: $2 has files of others"
fi
[ -z "$ended" ] || echo "$ended"
