# shellcheck disable=SC2154 # set by pool.sh
# $1: the pool, $2: the image, $3: MiB, $4: KiB of an object, $5: its token. Creates the image and prints its id.
# Fails if the pool has an image with this name.
use_pool "$1"
set -e
# Without an exclusive lock: host and guest use it in turn.
rbd create --size "$3M" --object-size "$4K" --image-feature layering "$pool/$2"
rbd image-meta set "$pool/$2" voh.token "$5" >/dev/null
rbd info --format json "$pool/$2" | sed -n 's/.*"id":"\([0-9a-f]*\)".*/\1/p'
