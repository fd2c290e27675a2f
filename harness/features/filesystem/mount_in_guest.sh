# $1: the mount point, $2: the device, $3: the file system, $4: options of mount. It uses only what busybox has.
# virt-overhead's own guest loads the modules of file systems when they are needed.
point=$1 device=$2 filesystem=$3 options=$4
if [ -r /lib/modules/filesystems ] && ! grep -qw "$filesystem" /proc/filesystems; then
    while read -r module; do insmod "/lib/modules/$module" 2>/dev/null; done </lib/modules/filesystems
fi
mkdir -p "$point" && mount -t "$filesystem" -o "${options:-rw}" "$device" "$point"
