# $1: a new directory, $2: the container's name, $3: the variable that marks its processes. For an unprivileged one also
# $4: the user of the host that is its root, then the name, the major and the minor number of each of its devices.
# Standard input: its configuration. Its programs are those of the host, which it cannot write to. So both have the same
# fio.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
umask 022
at=$1 name=$2 mark=$3 user=${4-}
shift 3
root=$at/$name/rootfs config=$at/$name/config
mkdir -m 0700 "$at" && mkdir "$at/$name" "$root" && cat >"$config" || exit
(cd "$root" && mkdir proc sys dev run tmp root etc disks && ln -s ../usr/lib/os-release etc/os-release) || exit
for directory in bin sbin lib lib32 lib64 libx32 usr opt; do
    if [ -L "/$directory" ]; then
        cp -P "/$directory" "$root/$directory" || exit
    elif [ -d "/$directory" ]; then
        mkdir "$root/$directory" && echo "lxc.mount.entry = /$directory $directory none bind,ro 0 0" >>"$config" || exit
    fi
done
if [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ]; then
    # A host without the program that loads profiles has none for containers.
    profile=unconfined
    if command -v apparmor_parser >/dev/null; then profile=generated; fi
    echo "lxc.apparmor.profile = $profile" >>"$config" || exit
fi
# The nodes of its devices belong to its root. They are in a file system that ends with the processes of the container.
nodes='at=$1 user=$2; shift 2
mount -t tmpfs -o mode=0755,size=64k devices "$at/devices" || exit
while [ "$1" != -- ]; do
    mknod -m 0600 "$at/devices/$1" b "$2" "$3" && chown "$user:$user" "$at/devices/$1" || exit
    shift 3
done
shift
exec "$@"'
start() { env "$mark" "$@" lxc-start --lxcpath "$at" --name "$name" --logfile "$at/log" --logpriority ERROR --daemon; }
if [ -z "$user" ]; then
    start
else
    # Its root passes through the directory, and puts mount points into its own file system.
    mkdir "$at/devices" && chmod 0711 "$at" && chown -R -h "$user:$user" "$root" &&
        start unshare --mount sh -c "$nodes" sh "$at" "$@" --
fi && lxc-info --lxcpath "$at" --name "$name" --no-humanize --pid >"$at/pid" && [ -s "$at/pid" ] && exit 0
# The cause is what failed first.
sed 's/^.* ERROR .* - [^ ]*:[0-9]* - //' "$at/log" | head -n 3 >&2
exit 1
