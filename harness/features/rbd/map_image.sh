# shellcheck disable=SC2154 # set by pool.sh
# $1: the pool, $2: the image. The kernel maps the image. Prints the device.
use_pool "$1"
set -e
device=$(rbd map "$pool/$2")
udevadm settle --timeout=20
echo "$device"
