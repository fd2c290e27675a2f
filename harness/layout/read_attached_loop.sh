# $1: a loop device. Prints its name, its sequence number and the id of the boot.
read -r diskseq 2>/dev/null <"/sys/block/${1##*/}/diskseq" || diskseq=
echo "${1##*/} $diskseq $(cat /proc/sys/kernel/random/boot_id)"
