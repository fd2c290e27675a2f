# $1: a zvol, or a file on a dataset. Prints sections with a title in brackets: the properties of the dataset, the sizes
# of sectors as powers of two (from OpenZFS 2.2 on of each disk), the seconds of a transaction group, the pool's status.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
case $1 in
/dev/zvol/*) dataset=${1#/dev/zvol/};;
*) dataset=$(findmnt --noheadings --nofsroot --output SOURCE --target "$1") || exit;;
esac
pool=${dataset%%/*}
echo "[properties]"
zfs get -Hp -o property,value volblocksize,recordsize,compression,sync,logbias,primarycache "$dataset" || exit
echo "[ashift]"
zpool get -Hp -o value ashift "$pool" all-vdevs 2>/dev/null
zpool get -Hp -o value ashift "$pool" || exit
echo "[txg_timeout]"
cat /sys/module/zfs/parameters/zfs_txg_timeout 2>/dev/null
echo "[status]"
zpool status -P "$pool"
