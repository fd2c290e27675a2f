# Online CPUs, NUMA nodes, and the free huge pages of each node by their size in KiB.
echo "cpus $(cat /sys/devices/system/cpu/online)"
echo "nodes $(cat /sys/devices/system/node/online 2>/dev/null || echo 0)"
for pages in /sys/devices/system/node/node*/hugepages/hugepages-*kB; do
    [ -e "$pages/free_hugepages" ] || continue
    node=${pages#*/node/node} size=${pages##*-}
    echo "pages ${node%%/*} ${size%kB} $(cat "$pages/free_hugepages")"
done
exit 0
