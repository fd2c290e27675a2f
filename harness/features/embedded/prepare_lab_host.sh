# The disks in memory, and the image of guests in DIRECTORY. libvirt queries QEMU's capabilities at the first use. Under
# emulation this needs seconds, so do it now. If QEMU answers too late, because the machine is busy, libvirt would
# remember that there is no KVM.
for _ in 1 2 3; do
    if virsh --quiet domcapabilities --virttype kvm >/dev/null 2>&1; then break; fi
    rm -f /var/cache/libvirt/qemu/capabilities/*
    systemctl try-restart libvirtd.service
done &
MAKE_DISKS
wait
mkdir -p DIRECTORY
mount -o ro -t iso9660 /dev/vdb DIRECTORY
