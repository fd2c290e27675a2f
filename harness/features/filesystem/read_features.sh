# $1: the file system, $2: its device, $3: its mount point, $4: its UUID. Prints words: what this file system has.
case $1 in
ext4) dumpe2fs -h "$2" 2>/dev/null | sed -n 's/^Filesystem features: *//p; s/^Block size: */block_size=/p' ;;
xfs) xfs_info "$3" | tr -s ' ,' '\n' | sed -n '/^\(crc\|finobt\|sparse\|rmapbt\|reflink\|bigtime\|inobtcount\)=[01]$/p' ;;
btrfs) ls "/sys/fs/btrfs/$4/features" ;;
esac
