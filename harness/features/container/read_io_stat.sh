# $1: the file with the id of the container's first process. Prints the bytes that its control group moved, by device.
read -r pid <"$1" || exit 1
cat "/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")/io.stat"
