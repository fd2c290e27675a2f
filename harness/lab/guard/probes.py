"""What the guard asks a host about a disk. Each probe ends in one of three ways: found, not found, could not tell."""

from __future__ import annotations

from harness.lab.paths import LEFT_DIRECTORY
from harness.lab.pin import FACTS

SAMPLE_BYTES = 65536
"""Bytes of each sample that is read."""
SAMPLES = 64
"""Samples at random positions, beside the ends. Where a share p of the disk holds data, all miss it with (1 - p)^64."""
WHOLE_BYTES = 128 << 20
"""A disk of this size or less is read as a whole."""
END_BYTES = 1 << 20
"""Bytes at both ends of a disk that are read as a whole: where most formats have their signatures."""

# Shell functions. `digest_of DEVICE POSITION...` prints a digest of the samples at these positions, in bytes.
# `left_file` prints the file for samples of the device whose facts were just read.
SAMPLED = rf"""
sample_bytes={SAMPLE_BYTES} whole_bytes={WHOLE_BYTES}
digest_of() {{
    perl -e '
        my $device = shift;
        open my $input, "<:raw", $device or die;
        for my $position (@ARGV) {{
            my ($buffer, $have) = ("", 0);
            sysseek $input, $position, 0 or die;
            while ($have < {SAMPLE_BYTES}) {{
                my $read = sysread $input, $buffer, {SAMPLE_BYTES} - $have, $have or die "byte $position";
                $have += $read;
            }}
            print $buffer;
        }}' "$@" | sha256sum | cut -d" " -f1
}}
left_file() {{ echo "{LEFT_DIRECTORY}/$(printf "%s" "$identity $sectors" | sha256sum | cut -c1-32)"; }}
"""

# $1: the disk's link or device, then the positions of samples: `ends` and bytes, from the end where they are negative,
# or `inside` and a share of the disk. Every line is a probe's name, the status of what it asked, and what that printed
# (a percent sign, a tab and a line break as %25, %09, %0a). Where a probe's status is not 0, it could not tell, and its
# text says why.
INSPECT = (
    FACTS
    + SAMPLED
    + r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
escape='{ gsub(/%/, "%25"); gsub(/\t/, "%09"); printf "%s%s", separator, $0; separator = "%0a" }'
line() { # NAME STATUS TEXT
    text=$(printf '%s\n' "$3" | awk "$escape") || { set -- "$1" 98 ""; text="awk does not work there"; }
    printf '%s\t%s\t%s\n' "$1" "$2" "$text"
}
say() { line "$1" 0 "$2"; }
ask() { # NAME COMMAND...
    probe=$1; shift
    said=$("$@" 2>"$errors"); status=$?
    # Some tools say that they failed on standard error alone, and end with 0.
    [ ! -s "$errors" ] || { said="$said
$(head -n 3 "$errors")"; [ "$status" -ne 0 ] || status=99; }
    line "$probe" "$status" "$said"
}
link=$1; shift
dev=$(readlink -e "$link") && [ -b "$dev" ] || { say missing "$link"; exit 0; }
errors=$(mktemp) || exit
trap 'rm -f "$errors"' EXIT
! command -v udevadm >/dev/null || udevadm settle --timeout=10
name=${dev##*/}
facts_of "$name" || { say missing "$link"; exit 0; }
say device "$dev"
say facts "$number	$diskseq	$sectors	$identity"
say serials "$( {
    udevadm info --query=property --name="$dev" |
        sed -n 's/^\(ID_SERIAL\|ID_SERIAL_SHORT\|ID_SCSI_SERIAL\|MD_UUID\)=//p'
    cat "/sys/class/block/$name/serial" "/sys/class/block/$name/device/serial" "/sys/class/block/$name/dm/uuid"
    tail -c +5 "/sys/class/block/$name/device/vpd_pg80" | tr -d '\0'
    echo
    [ ! -d "/sys/class/block/$name/md" ] || mdadm --detail --export "$dev" | sed -n 's/^MD_UUID=//p'
    } 2>/dev/null | tr '\n' ' ')"
say backing "$(cat "/sys/class/block/$name/loop/backing_file" 2>/dev/null)"
ask block lsblk -J -b -o NAME,PATH,KNAME,TYPE,SIZE,RO,MAJ:MIN "$dev"
nodes=$(lsblk -nlo KNAME "$dev" 2>/dev/null | sort -u)
parts=$(for each in $nodes; do [ ! -e "/sys/class/block/$each/partition" ] || echo "/dev/$each"; done)

# What the other probes are made of: where one of these does nothing, they would find nothing.
tools() {
    for tool in awk cat cut find grep head readlink sed sort stat tail tr; do
        command -v "$tool" >/dev/null || echo "$tool is not installed there" >&2
    done
    tried=$(printf 'b\na\n' | sort | sed 's/^/x/' | grep -n x | awk '{ print $1 }' | head -n 2 | tr '\n' ' ')
    [ "$tried" = "1:xa 2:xb " ] ||
        echo "sort, sed, grep, awk, head or tr does not work there" >&2
}
ask tools tools
swaps() {
    [ -r /proc/swaps ] || { echo "/proc/swaps cannot be read" >&2; return 1; }
    tail -n +2 /proc/swaps | cut -d' ' -f1 | while read -r swap; do
        swap=$(readlink -f "$swap")
        for each in $nodes; do [ "/dev/$each" != "$swap" ] || echo "$swap"; done
    done
}
holders() {
    for each in $name $(for part in $parts; do echo "${part##*/}"; done); do
        for holder in "/sys/class/block/$each/holders"/*; do
            [ -e "$holder" ] || continue
            holder=${holder##*/}
            word "/sys/class/block/$holder/dm/name"; called=${text:+ ($text)}
            word "/sys/class/block/$holder/dm/uuid"
            kind=${text%%-*}
            [ ! -d "/sys/class/block/$holder/md" ] || kind=md
            echo "$each by $holder$called${kind:+, $kind}"
        done
        [ ! -d "/sys/class/block/$each/bcache" ] || echo "$each by bcache"
    done
    # These hold a device without a claim that the kernel would show: another loop device, an NVMe or iSCSI target.
    configured=/sys/kernel/config
    for file in /sys/block/loop*/loop/backing_file "$configured"/nvmet/subsystems/*/namespaces/*/device_path \
        "$configured"/target/core/*/*/udev_path; do
        word "$file"
        case $text in /dev/*) ;; *) continue;; esac
        used=$(readlink -e "$text")
        for each in $nodes; do [ "/dev/$each" != "$used" ] || echo "$each by ${file%/*}"; done
    done
}
roots() {
    root=$(stat -c %d /) || return
    major=$((root >> 8 & 0xfff)) minor=$((root & 0xff | root >> 12 & 0xfff00))
    [ "$major" -ne 0 ] || { # btrfs, ZFS, overlay: only its source tells
        findmnt -nvo SOURCE / | while read -r source; do [ ! -b "$source" ] || lsblk -nso KNAME "$source"; done
        return 0
    }
    lsblk -nsro KNAME "/dev/$(basename "$(readlink -f "/sys/dev/block/$major:$minor")")"
}
ask swaps swaps
ask holders holders
ask roots roots
signatures() { wipefs -J -O DEVICE,TYPE,LABEL,OFFSET "$dev" $parts; }
ask signatures signatures

# Whom definitions of virtual machines, running or not, give the disk: by any path that leads to it, or by the PCI
# address of its controller. Of each file that names it, a line.
paths=$(for each in $nodes; do
    echo "/dev/$each"
    # Every name that udev has given it.
    word "/sys/class/block/$each/dev"
    sed -n 's|^S:|/dev/|p' "/run/udev/data/b$text" 2>/dev/null
    word "/sys/class/block/$each/dm/name"
    [ -z "$text" ] || echo "/dev/mapper/$text"
done; echo "$link")
pci=$(readlink -f "/sys/class/block/$name/device" | tr / '\n' |
    grep -E '^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$' | tail -n 1)
slot=${pci#*:} function=${pci##*.}
bus=${slot%%:*} slot=${slot%.*} domain=${pci%%:*}
# Only of an NVMe disk: a whole controller of others carries more than this disk, and libvirt is asked before it is
# passed.
domains() {
    set -- $(for home in $(cut -d: -f6 /etc/passwd 2>/dev/null | sort -u); do echo "$home/.config/libvirt"; done)
    find /etc/libvirt /run/libvirt /run/user/*/libvirt /var/lib/libvirt/qemu "$@" -name '*.xml' -type f 2>/dev/null |
    while IFS= read -r file; do
        case $file in */capabilities/* | */nwfilter/* | */networks/*) continue;; esac
        found=$(for path in $paths; do grep -oF -e "'$path'" -e "\"$path\"" -e ">$path<" "$file"; done | head -n 1)
        if [ -z "$found" ] && [ -n "$pci" ]; then
            # A source address has no type; one in the guest has.
            at="<address domain=.0x$domain. bus=.0x$bus. slot=.0x${slot#*:}. function=.0x$function."
            found=$(tr -d '\n' <"$file" | grep -oE '<hostdev[^>]*type=.pci.*</hostdev>' | grep -oE "$at" | head -n 1)
            [ -z "$found" ] || found="PCI device $pci"
        fi
        [ -z "$found" ] || { [ -r "$file" ] && echo "$file names $found"; }
    done
}
ask domains domains
nodes_of_pve() {
    [ -d /etc/pve/nodes ] || return 0
    [ -z "$pci" ] || grep -sn "path=$pci" /etc/pve/mapping/pci.cfg | sed "s|^|/etc/pve/mapping/pci.cfg: |"
    { find /etc/pve/nodes -path '*/qemu-server/*.conf' -o -path '*/lxc/*.conf'; ls /etc/pve/storage.cfg 2>/dev/null; } |
    while IFS= read -r file; do
        for path in $paths; do grep -nE "[ ,:=]$path([,; ]|\$)" "$file" | head -n 1 | sed "s|^|$file: |"; done
        [ -z "$pci" ] || grep -nE "^hostpci[0-9]+: *(host=)?($domain:)?$slot(\.$function)?(\$|[,;])" "$file" |
            head -n 1 | sed "s|^|$file: |"
    done
}
ask proxmox nodes_of_pve

# In one process: is the disk open anywhere, can it be claimed for one user alone, and what do its samples hold?
command -v perl >/dev/null || {
    printf 'contents\t1\tperl is not installed there: apt-get install perl-base\n'
    exit 0
}
perl - "$sample_bytes" "$whole_bytes" "$dev" "$(echo $parts)" "$(echo $nodes)" "$@" <<'PERL'
use strict;
use Fcntl;
my ($length, $whole, $device, $parts, $nodes, @positions) = @ARGV;
sub say_ {
    my ($name, $status, $text) = @_;
    $text =~ s/([%\t\n])/sprintf '%%%02x', ord $1/ge;
    print "$name\t$status\t$text\n";
}
my %numbers;
for my $each ($device, split ' ', $parts) { my @status = stat $each; $numbers{$status[6]} = $each if @status; }
# In every mount namespace, and by number: a path may mean something else there.
my (%mounts, $readable);
my %kernel_names = map { my $file; open($file, '<', "/sys/class/block/$_/dev") ? (<$file> =~ s/\s+$//r => $_) : () }
    split ' ', $nodes;
for my $file (glob '/proc/[0-9]*/mountinfo') {
    open my $input, '<', $file or next;
    while (my $mount = <$input>) {
        my @field = split ' ', $mount;
        $readable = 1;
        $mounts{"/dev/$kernel_names{$field[2]} on $field[4]"} = 1 if exists $kernel_names{$field[2]};
    }
}
say_('mounts', $readable && %kernel_names ? 0 : 1, join "\n", sort keys %mounts);
# udev may have it open for a moment after something wrote to it.
my ($users, $claimed);
for my $try (1 .. 10) {
    my %found;
    for my $file (glob '/proc/[0-9]*/fd/*') {
        my @status = stat $file;
        next unless @status && ($status[2] & 0170000) == 0060000 && exists $numbers{$status[6]};
        my ($pid) = $file =~ m{/proc/(\d+)/};
        next if $pid == $$;
        my $command = '';
        if (open my $comm, '<', "/proc/$pid/comm") { chomp($command = <$comm> // ''); }
        $found{"$numbers{$status[6]} by $command (process $pid)"} = 1;
    }
    $users = join "\n", sort keys %found;
    $claimed = '';
    for my $each ($device, split ' ', $parts) {
        if (sysopen my $claim, $each, O_RDONLY | O_EXCL) { close $claim; } else { $claimed .= "$each: $!\n"; }
    }
    last if $users eq '' && $claimed eq '';
    last if $claimed ne '' && $claimed !~ /busy/i;
    select undef, undef, undef, 0.1;
}
say_('users', 0, $users);
say_('claim', 0, $claimed);
my %other = (ends => 0, inside => 0, whole => 0);
open my $input, '<:raw', $device or do { say_('contents', 1, "$device cannot be opened: $!"); exit };
my $size = sysseek $input, 0, 2;
if ($size <= $whole) {
    push @positions, map { 'whole' . $_ * $length } 0 .. ($size - 1) / $length;
}
for my $at (@positions) {
    my ($where, $position) = $at =~ /^([a-z]+)(.+)$/;
    $position = int($position * $size / $length) * $length if $where eq 'inside';
    $position += $size if $position < 0;
    $position = $size - $length if $position > $size - $length;
    $position = 0 if $position < 0;
    my ($buffer, $have) = ('', 0);
    sysseek $input, $position, 0 or do { say_('contents', 1, "byte $position of $device cannot be read: $!"); exit };
    while ($have < $length && $position + $have < $size) {
        my $read = sysread $input, $buffer, $length - $have, $have;
        unless ($read) {
            my $byte = $position + $have;
            say_('contents', 1, "byte $byte of $device cannot be read: " . ($! || 'it ends there'));
            exit;
        }
        $have += $read;
    }
    $other{$where}++ if $buffer =~ /[^\0]/;
}
say_('contents', 0, "$other{ends} " . ($other{inside} + $other{whole}));
PERL
# Samples of what a run has left there, as its clean-up wrote them down: are they the same now?
left=$(left_file)
[ -r "$left" ] || { say left none; exit 0; }
read -r digest positions <"$left"
[ "$(digest_of "$dev" $positions)" = "$digest" ] && say left same || say left changed
"""
)
