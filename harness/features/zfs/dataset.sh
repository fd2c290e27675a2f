# Shell functions for a dataset as a storage in use.
inspect_dataset() {
    [ "$(zfs get -Hp -o value type "$1")" = filesystem ] || refuse "it is not a dataset"
    [ "$(zfs get -Hp -o value readonly "$1")" = off ] || refuse "it is read-only"
    # Parity, disks and the power of two of a sector of each raidz. Small records take more space there.
    shift_of_pool=$(zpool get -Hp -o value ashift "${1%%/*}")
    zpool list -v -H -P "${1%%/*}" | awk -F '\t' -v shift="$shift_of_pool" '
        function put() { if (disks) print "raidz=" parity " " disks " " shift + 0; disks = 0 }
        $2 ~ /^raidz/ { put(); parity = substr($2, 6, 1); counting = 1; next }
        $2 !~ /^\// { put(); counting = 0 }
        counting { disks++ }
        END { put() }'
}
identify_dataset() { zfs get -Hp -o value guid "$1"; }
