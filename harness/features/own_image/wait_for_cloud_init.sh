# $1: seconds. cloud-init writes the file when everything is done. `cloud-init status --wait` would start Python.
# Timers of the image start updates, which would disturb a measurement. The guest does not live long enough to need any.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
i=0
until [ -e RESULT ]; do i=$((i+1)); [ $i -gt $(($1 * 5)) ] && exit 1; sleep 0.2; done
systemctl stop '*.timer' >/dev/null 2>&1
[ -e /run/hypervisor ] || lscpu | sed -n 's/^Hypervisor vendor: *//p' >/run/hypervisor
: >/run/ready
cat RESULT
