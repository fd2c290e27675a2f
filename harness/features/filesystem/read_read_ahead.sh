# Prints how far the kernel reads ahead on each device or file that is named, in KiB; `-` if it does not show that.
# A block device has its number as %t:%T in hexadecimal digits, and a file that of its file system as %d. A partition has
# the setting of its disk. It uses only what busybox has.
for path; do
    if [ -b "$path" ]; then
        number=$((0x$(stat -L -c %t "$path"))):$((0x$(stat -L -c %T "$path")))
    else
        device=$(stat -L -c %d "$path")
        number=$((device >> 8 & 0xfff)):$((device & 0xff | device >> 12 & 0xfff00))
    fi
    for file in "/sys/class/bdi/$number/read_ahead_kb" "/sys/dev/block/$number/../queue/read_ahead_kb"; do
        [ ! -r "$file" ] || break
    done
    cat "$file" 2>/dev/null || echo -
done
