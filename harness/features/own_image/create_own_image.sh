# $1: a new directory, $2: the image, $3: its format, $4: how qemu-img reads the directory `seed` as a disk. Standard
# input: the user data. The guest's host key is in it, so only root may read it, and QEMU's user, to whom libvirt gives
# the files. This user must be able to enter the directory.
mkdir -p "${1%/*}" && mkdir -m 0711 "$1" && umask 077 && mkdir "$1/seed" && cd "$1" || exit
cat >seed/user-data && printf 'instance-id: %s\n' "${1##*/}" >seed/meta-data &&
    qemu-img convert -O raw "$4" seed.img && rm -r seed &&
    qemu-img create -q -f qcow2 -b "$2" -F "$3" system.qcow2
