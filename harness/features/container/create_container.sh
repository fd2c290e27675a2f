# $1: a new directory, $2: the container's name, $3: the variable that marks its processes. Standard input: its
# configuration. Its programs are those of the host, which it cannot write to. So both have the same fio.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
umask 022
root=$1/$2/rootfs config=$1/$2/config
mkdir -m 0700 "$1" && mkdir "$1/$2" "$root" && cat >"$config" || exit
(cd "$root" && mkdir proc sys dev run tmp root etc disks && ln -s ../usr/lib/os-release etc/os-release) || exit
for name in bin sbin lib lib32 lib64 libx32 usr opt; do
    if [ -L "/$name" ]; then
        cp -P "/$name" "$root/$name" || exit
    elif [ -d "/$name" ]; then
        mkdir "$root/$name" && echo "lxc.mount.entry = /$name $name none bind,ro 0 0" >>"$config" || exit
    fi
done
if [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ]; then
    # A host without the program that loads profiles has none for containers.
    profile=unconfined
    if command -v apparmor_parser >/dev/null; then profile=generated; fi
    echo "lxc.apparmor.profile = $profile" >>"$config" || exit
fi
env "$3" lxc-start --lxcpath "$1" --name "$2" --logfile "$1/log" --logpriority ERROR --daemon &&
    lxc-info --lxcpath "$1" --name "$2" --no-humanize --pid >"$1/pid" && [ -s "$1/pid" ] && exit 0
# The cause is what failed first.
sed 's/^.* ERROR .* - [^ ]*:[0-9]* - //' "$1/log" | head -n 3 >&2
exit 1
