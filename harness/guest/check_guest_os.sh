# $1: the program fio, $2: drivers. Prints what measuring needs of the system. `modprobe -n` loads nothing.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
echo "user=$(id -u)"
echo "fio=$("$1" --version 2>/dev/null)"
echo "os=$(. /etc/os-release 2>/dev/null; echo "$ID $ID_LIKE")"
for driver in $2; do
    ls -d /sys/bus/*/drivers/"$driver" >/dev/null 2>&1 || modprobe -n -q "$driver" 2>/dev/null || continue
    echo "$driver=yes"
done
# A driver that is built in has this directory because of its parameters.
if [ -d /sys/module/cpuidle_haltpoll ] || modprobe -n -q cpuidle_haltpoll 2>/dev/null; then echo haltpoll=yes; fi
