# $@: the kernel's names of arrays. Prints "ARRAY DEVICE THREAD" for the array and each one below it; - without thread.
# The kernel names the thread of an array after both: md127_raid5. RAID 0 has none. Source: md_register_thread in md.c.
legs() {
    for below in "/sys/class/block/$1/slaves"/md*; do
        [ ! -e "$below" ] || { echo "${below##*/}"; legs "${below##*/}"; }
    done
}
thread_of() {
    for process in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$process/comm" || continue
        case $name in "$1"_raid*) echo "${process#/proc/}"; return;; esac
    done
    echo -
}
for array; do
    for device in "$array" $(legs "$array"); do echo "$array $device $(thread_of "$device")"; done
done
