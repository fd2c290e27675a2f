# $1: the device, $2: the UUID of the header, $3: the name of the new device. The key is only in this shell and in
# pipes: `printf` is a part of the shell, so no process has it in its arguments. A random key needs no slow derivation.
export PATH="$PATH:/usr/sbin:/sbin"
key=$(od -An -v -tx1 -N64 /dev/urandom | tr -d ' \n') && [ "${#key}" -eq 128 ] || exit
printf %s "$key" | cryptsetup luksFormat --type luks2 --batch-mode --key-file - --uuid "$2" \
    --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$1" &&
    printf %s "$key" | cryptsetup open --type luks2 --key-file - "$1" "$3" || exit
! command -v udevadm >/dev/null || udevadm settle --timeout=20
