# shellcheck disable=SC2086 # lists of words
# shellcheck disable=SC2154 # set by device_facts.sh and sample_disk.sh
# $1: the disk's link or device, then the positions of samples: `ends` and bytes (negative: from the end), or `inside`
# and a share of the disk. Every line is a probe's name, its status, and its text (a percent sign, a tab and a line
# break as %25, %09, %0a). If the status is not 0, the probe could not tell, and the text says why.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
escape='{ gsub(/%/, "%25"); gsub(/\t/, "%09"); printf "%s%s", separator, $0; separator = "%0a" }'
line() { # NAME STATUS TEXT
    text=$(printf '%s\n' "$3" | awk "$escape") || { set -- "$1" 98 ""; text="awk does not work there"; }
    printf '%s\t%s\t%s\n' "$1" "$2" "$text"
}
report() { line "$1" 0 "$2"; }
run_probe() { # NAME COMMAND...
    probe=$1; shift
    printed=$("$@" 2>"$errors"); status=$?
    # Some tools report a failure only on standard error, and end with 0.
    [ ! -s "$errors" ] || { printed="$printed
$(head -n 3 "$errors")"; [ "$status" -ne 0 ] || status=99; }
    line "$probe" "$status" "$printed"
}
link=$1; shift
dev=$(readlink -e "$link") && [ -b "$dev" ] || { report missing "$link"; exit 0; }
errors=$(mktemp) || exit
trap 'rm -f "$errors"' EXIT
! command -v udevadm >/dev/null || udevadm settle --timeout=10
name=${dev##*/}
facts_of "$name" || { report missing "$link"; exit 0; }
report device "$dev"
report facts "$number	$diskseq	$sectors	$identity"
report serials "$( {
    udevadm info --query=property --name="$dev" |
        sed -n 's/^\(ID_SERIAL\|ID_SERIAL_SHORT\|ID_SCSI_SERIAL\|MD_UUID\)=//p'
    cat "/sys/class/block/$name/serial" "/sys/class/block/$name/device/serial" "/sys/class/block/$name/dm/uuid"
    tail -c +5 "/sys/class/block/$name/device/vpd_pg80" | tr -d '\0'
    echo
    [ ! -d "/sys/class/block/$name/md" ] || mdadm --detail --export "$dev" | sed -n 's/^MD_UUID=//p'
    } 2>/dev/null | tr '\n' ' ')"
report backing "$(cat "/sys/class/block/$name/loop/backing_file" 2>/dev/null)"
run_probe block lsblk -J -b -o NAME,PATH,KNAME,TYPE,SIZE,RO,MAJ:MIN "$dev"
parts=$(for file in "/sys/class/block/$name"/*/partition; do
    file=${file%/*}
    [ ! -e "$file" ] || echo "/dev/${file##*/}"
done)

# The tools of the shell's probes. If one of them does nothing, the probes would find nothing.
tools() {
    for tool in awk cat cut readlink sed stat tail tr; do
        command -v "$tool" >/dev/null || echo "$tool is not installed there" >&2
    done
    tried=$(printf 'a\nb\n' | sed 's/^/x/' | awk '{ print $1 }' | tr '\n' ' ')
    [ "$tried" = "xa xb " ] || echo "sed, awk or tr does not work there" >&2
}
run_probe tools tools
roots() {
    root=$(stat -c %d /) || return
    major=$((root >> 8 & 0xfff)) minor=$((root & 0xff | root >> 12 & 0xfff00))
    [ "$major" -eq 0 ] || {
        lsblk -nsro KNAME "/dev/$(basename "$(readlink -f "/sys/dev/block/$major:$minor")")"
        return
    }
    # btrfs, ZFS, overlay: only the source of the mount identifies the device.
    sources=$(findmnt -nvo SOURCE /) || return
    for source in $sources; do [ ! -b "$source" ] || lsblk -nso KNAME "$source" || return; done
}
run_probe roots roots
signatures() { wipefs -J -O DEVICE,TYPE,LABEL,OFFSET "$dev" $parts; }
run_probe signatures signatures

# One process runs all other probes: on an emulated host each process costs more than the reading itself, and a pipeline
# would not report that one of its parts failed.
command -v perl >/dev/null || {
    printf 'contents\t1\tperl is not installed there: apt-get install perl-base\n'
    exit 0
}
perl - "$sample_bytes" "$whole_bytes" "$dev" "$link" "$@" <<'PERL'
use strict;
use Fcntl;
my ($length, $whole, $device, $link, @positions) = @ARGV;
my $block = '/sys/class/block';
my ($kernel_name) = $device =~ m{([^/]+)$};
sub report {
    my ($name, $status, $text) = @_;
    $text =~ s/([%\t\n])/sprintf '%%%02x', ord $1/ge;
    print "$name\t$status\t$text\n";
}
# The probe returns the texts that it found. If it dies, it could not tell.
sub probe {
    my ($name, $look) = @_;
    my @found = eval { $look->() };
    $@ ? report($name, 1, $@ =~ s/\s+$//r) : report($name, 0, join "\n", @found);
}
# A listed file may be gone by now: ENOENT, ESRCH, ENXIO, ENODEV, ENOTDIR.
sub gone { grep { $! == $_ } 2, 3, 6, 19, 20 }
sub text_of { # FILE: its text, undef if there is none
    my ($file) = @_;
    my $text;
    open my $input, '<:raw', $file or do { return undef if gone(); die "$file cannot be opened: $!\n" };
    $! = 0;
    { local $/; $text = <$input>; }
    return $text if defined $text && !$!;
    return undef if gone();
    die "$file cannot be read: $!\n" if $!;
    return '';
}
sub word { # FILE: its first line, without blanks at the ends
    my ($text) = split /\n/, text_of($_[0]) // '';
    return ($text // '') =~ s/^\s+|\s+$//gr;
}
sub names { # DIRECTORY: what is in it
    my ($directory) = @_;
    opendir my $input, $directory or do { return () if gone(); die "$directory cannot be read: $!\n" };
    return sort grep { !/^\.\.?$/ } readdir $input;
}
sub files { # PATTERN DIRECTORY...: the files below these directories whose names match
    my ($pattern, @directories) = @_;
    my @found;
    while (defined(my $directory = shift @directories)) {
        for my $name (names($directory)) {
            my $path = "$directory/$name";
            lstat $path or do { next if gone(); die "$path cannot be read: $!\n" };
            if (-d _) { push @directories, $path } elsif (-f _ && $name =~ $pattern) { push @found, $path }
        }
    }
    return @found;
}
sub number { # MAJOR:MINOR, as `stat` gives it
    my ($major, $minor) = split /:/, $_[0];
    return ($minor & 0xff) | ($major & 0xfff) << 8 | ($minor & ~0xff) << 12;
}

# The disk, its partitions and all devices on them, by kernel name.
my @nodes = $kernel_name;
for my $node (@nodes) {
    my @parts = grep { -e "$block/$node/$_/partition" } names("$block/$node");
    for my $each (@parts, names("$block/$node/holders")) {
        push @nodes, $each unless grep { $_ eq $each } @nodes;
    }
}
my @parts = grep { -e "$block/$kernel_name/$_" && -e "$block/$_/partition" } @nodes;
my %majors = map { word("$block/$_/dev") => $_ } @nodes;
my %numbers = map { number($_) => $majors{$_} } keys %majors;
# A disk also has a character device, by which QEMU can use it.
my %characters = map { number(word($_)) => $kernel_name } glob("$block/$kernel_name/device/scsi_generic/*/dev"),
    $kernel_name =~ /^nvme(.+)/ ? glob("/sys/class/nvme-generic/ng$1/dev") : ();
my %files; # those behind loop devices, by device and inode
for my $node (@nodes) {
    my @status = stat word("$block/$node/loop/backing_file");
    $files{"@status[0, 1]"} = $node if @status;
}
sub node_of { # PATH: the node that it leads to now
    my @status = stat $_[0];
    return undef unless @status;
    my $kind = $status[2] & 0170000;
    return $kind == 0060000 ? $numbers{$status[6]} : $kind == 0020000 ? $characters{$status[6]} : undef;
}

probe('swaps', sub {
    my ($title, @swaps) = split /\n/, text_of('/proc/swaps') // die "there is no /proc/swaps\n";
    my @files = map { (split)[0] =~ s/\\([0-7]{3})/chr oct $1/ger } @swaps;
    return grep { defined node_of($_) } @files;
});
probe('holders', sub {
    my @found;
    for my $node ($kernel_name, @parts) {
        for my $holder (names("$block/$node/holders")) {
            my $called = word("$block/$holder/dm/name");
            my ($kind) = split /-/, word("$block/$holder/dm/uuid");
            $kind = 'md' if -d "$block/$holder/md";
            push @found, "$node by $holder" . ($called ne '' && " ($called)") . ($kind && ", $kind");
        }
        push @found, "$node by bcache" if -d "$block/$node/bcache";
    }
    # These users of a device do not show up as holders: another loop device, an NVMe or iSCSI target.
    my $configured = '/sys/kernel/config';
    for my $file (glob("/sys/block/loop*/loop/backing_file $configured/nvmet/subsystems/*/namespaces/*/device_path " .
        "$configured/target/core/*/*/udev_path")) {
        my $used = word($file);
        next unless $used =~ m{^/};
        my @status = stat $used;
        my $node = node_of($used) // (@status ? $files{"@status[0, 1]"} : undef);
        next if !defined $node || $file eq "/sys/block/$node/loop/backing_file";
        push @found, "$node by " . $file =~ s{/[^/]+$}{}r;
    }
    return @found;
});

# The same disk by another path. Nothing shows on this device who uses it there.
sub page { # FILE: its text; empty if the disk has none, which the kernel reports as an invalid argument
    my $text = eval { text_of($_[0]) };
    die $@ if $@ && $@ !~ /Invalid argument/;
    return $text // '';
}
sub wwid { my ($at) = @_; return (page("$at/wwid") || page("$at/device/wwid")) =~ s/^\s+|\s+$//gr }
sub identity { # DEVICE. Cheap disks of one model may all have one WWID, so serial number and size count as well.
    my ($at) = @_;
    return join "\0", wwid($at), word("$at/size"), word("$at/device/serial"), page("$at/device/vpd_pg80");
}
probe('paths', sub {
    my $wwid = wwid("$block/$kernel_name");
    return () if $wwid eq '' || -e "$block/$kernel_name/partition";
    my $sought = identity("$block/$kernel_name");
    return map { "$_ ($wwid)" } grep {
        my $at = "$block/$_";
        $_ ne $kernel_name && !-e "$at/partition" && word("$at/hidden") ne '1' && wwid($at) eq $wwid &&
            identity($at) eq $sought
    } names($block);
});

# Definitions of virtual machines, running or not, that use the disk: by any path that leads to it, or by the PCI
# address of its controller. The address is checked only for an NVMe disk, because other controllers have more than one
# disk, and libvirt is queried before such a controller is passed through.
my @paths = ($link, map {
    my $node = $_;
    my $udev = text_of('/run/udev/data/b' . word("$block/$node/dev")) // '';
    my $called = word("$block/$node/dm/name");
    ("/dev/$node", (map { "/dev/$_" } $udev =~ /^S:(.+)$/mg), $called ne '' ? "/dev/mapper/$called" : ());
} @nodes);
my %called = map { $_ => 1 } @paths, map { "/dev/block/$_" } keys %majors; # udev makes these links, if it runs
# A text may have a path after any of these characters, and the path may end before any of them, or go on.
my $weak = '\s=:,;()\[\]{}"\'';
sub paths_in { # TEXT: everything in it that may be a path
    my %found;
    for my $line (split /[\n\0]/, $_[0]) {
        while ($line =~ m{(?:^|[$weak])(?=(/.{1,4096}))}go) {
            my $rest = $1;
            $found{$rest =~ s/\s+$//r} = 1;
            while ($rest =~ /[$weak]/go) { $found{substr $rest, 0, pos($rest) - 1} = 1 }
        }
    }
    $found{s/,,/,/gr} = 1 for grep { /,,/ } keys %found; # QEMU's option strings
    return sort { length $b <=> length $a } keys %found;
}
sub values_in { # XML: its attributes and texts
    my ($text) = @_;
    $text =~ s/<!\[CDATA\[(.*?)\]\]>/$1 =~ s{&}{&amp;}gr =~ s{<}{&lt;}gr/gse;
    my %entity = (amp => '&', lt => '<', gt => '>', quot => '"', apos => "'");
    return map {
        s/&(?:#x([0-9a-f]+)|#([0-9]+)|(\w+));/defined $1 ? chr hex $1 : defined $2 ? chr $2 : $entity{$3} \/\/ ''/gier
    } grep { defined } $text =~ /=\s*"([^"]*)"|=\s*'([^']*)'|>\s*([^<]*[^<\s])\s*</g;
}
# A path names the disk if it is one of its names, or leads to its number or to the file behind its loop device, or to
# an image that is based on one of these.
sub name_of { # PATH, images that led to it: how it names the disk, undef if it does not
    my ($path, @before) = @_;
    my $plain = $path =~ s{/(?:\.?/)+}{/}gr;
    1 while $plain =~ s{/(?!\.\./)[^/]+/\.\.(?=/|$)}{};
    return $path if $called{$path} || $called{$plain} || defined node_of($path);
    my @status = stat $path;
    return undef if !@status || ($status[2] & 0170000) != 0100000;
    return $path if $files{"@status[0, 1]"};
    my ($directory) = $path =~ m{^(.*)/};
    return undef if @before > 200 || grep { $_ eq "@status[0, 1]" } @before;
    for my $base (bases_of($path)) {
        my $named = name_of($base =~ m{^/} ? $base : "$directory/$base", @before, "@status[0, 1]");
        return "$path, which is based on $named" if defined $named;
    }
    return undef;
}
sub bases_of { # IMAGE: the files and devices that it names: of qcow2, and of the description of a vmdk
    my ($image) = @_;
    open my $input, '<:raw', $image or return ();
    read $input, my $head, 65536 or return ();
    return ($head =~ /"([^"\n]+)"/g) if $head =~ /^# Disk DescriptorFile/;
    return () unless $head =~ /^QFI\xfb/ && length $head >= 72;
    my ($version, $at, $size) = unpack 'x4 N Q> N', $head;
    my @names = $at && $at + $size <= length $head ? substr $head, $at, $size : ();
    for (my $next = $version < 3 ? 72 : unpack 'x100 N', $head; $next + 8 <= length $head;) {
        my ($type, $length) = unpack "x$next N N", $head;
        last if $type == 0;
        push @names, substr $head, $next + 8, $length if $type == 0x44415441; # the file with the data
        $next += 8 + ($length + 7 & ~7);
    }
    return map { /^(?:json:|\w+:\/\/)/ ? paths_in($_) : s/^(?:file|raw|host_device)://r } @names;
}
sub first_name { # PATH...: how the first of them that names the disk does that
    for my $path (@_) {
        my $named = name_of($path);
        return $named if defined $named;
    }
    return undef;
}
my $nvme = "$block/$kernel_name/device";
my @pci = $kernel_name !~ /^nvme/ ? () : grep { /^[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$/ }
    map { word("$_/address") } $nvme, map { "$nvme/$_" } grep { /^nvme\d+$/ } names($nvme);
sub controller { # DOMAIN BUS SLOT FUNCTION, in hexadecimal: the controller of the disk that has this address
    my ($sought) = sprintf '%04x:%02x:%02x.%x', map { hex } @_;
    return grep { $_ eq $sought } @pci;
}
sub given { # ADDRESS, in the form of XML or of Proxmox VE: the controller of the disk if it has this address
    my ($address) = @_;
    if (my ($domain, $bus, $slot, $function) =
        $address =~ /^(?:([0-9a-f]{4,}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$/i) {
        return map { controller($domain // 0, $bus, $slot, $_) } $function // (0 .. 7);
    }
    my %part = $address =~ /(\w+)=["']([^"']*)/g;
    return () if grep { !defined $part{$_} } qw(bus slot function);
    return controller($part{domain} // 0, @part{qw(bus slot function)});
}
# libvirt names a SCSI device that a guest gets by its place.
my @scsi = (readlink("$block/$kernel_name/device") // '') =~ m{(\d+):(\d+):(\d+):(\d+)$};
sub scsi_device { # SOURCE: whether it is the disk
    my ($source) = @_;
    my ($host) = $source =~ /<adapter\b[^>]*\bname=["']scsi_host(\d+)/ or return 0;
    my %part = $source =~ /\b(bus|target|unit)=["'](\d+)/g;
    return @scsi && "$host:" . join(':', map { $_ // 0 } @part{qw(bus target unit)}) eq join ':', @scsi;
}
probe('domains', sub {
    my %homes = map { ((split /:/)[5] // '') => 1 } split /\n/, text_of('/etc/passwd') // '';
    my @directories = ('/etc/libvirt', '/run/libvirt', glob('/run/user/*/libvirt'), '/var/lib/libvirt/qemu',
        map { "$_/.config/libvirt" } sort grep { $_ ne '' } keys %homes);
    my (@found, %texts, %pools);
    for my $file (files(qr/\.xml$/, @directories)) {
        next if $file =~ m{/(capabilities|nwfilter|networks)/};
        my $text = text_of($file) // next;
        $text =~ tr/\0//d if $text =~ /^(?:\xff\xfe|\xfe\xff)/; # UTF-16
        $texts{$file} = $text;
        my ($target) = $text =~ m{<pool\b.*<target>.*?<path>\s*([^<]*?)\s*</path>}s or next;
        $pools{$1} = $target if $text =~ m{<name>\s*([^<]*?)\s*</name>};
    }
    for my $file (files(qr/\.save$/, '/var/lib/libvirt/qemu/save')) {
        # The definition of the saved guest comes before its memory.
        open my $input, '<:raw', $file or do { next if gone(); die "$file cannot be opened: $!\n" };
        read $input, my $head, 1 << 20;
        $texts{$file} = $1 if $head =~ m{(<domain\b.*?</domain>)}s;
    }
    for my $file (sort keys %texts) {
        my $text = $texts{$file};
        my ($named) = map { $text =~ /('\Q$_\E'|"\Q$_\E"|>\Q$_\E<)/ } @paths;
        my @volumes = map { /\bpool=["']([^"']*)/ && defined $pools{$1} ? [$pools{$1}, /\bvolume=["']([^"']*)/] : () }
            $text =~ /<source\b([^>]*)>/g;
        $named //= first_name(map({ paths_in($_) } values_in($text)), map { join '/', @$_ } @volumes);
        # What the host gives is in a source; an address outside of one is the guest's.
        for my $source ($text =~ m{<source(?:\s[^>]*[^/>])?>(.*?)</source>}sg) {
            my ($pci) = map { given($_) } $source =~ /<address\b([^>]*)>/g;
            $named //= "PCI device $pci" if defined $pci;
            $named //= 'SCSI device ' . join ':', @scsi if scsi_device($source);
        }
        push @found, "$file names $named" if defined $named;
    }
    # Other programs that will use the disk when they start, or when the host starts.
    my $lists = '/etc/fstab /etc/crypttab /etc/auto.* /etc/mdadm.conf /etc/mdadm/*.conf /etc/mdadm/mdadm.conf.d/* ' .
        '/etc/systemd/system/*.mount /etc/systemd/system/*.swap /etc/systemd/system/*.service /etc/systemd/nspawn/* ' .
        '/etc/drbd.conf /etc/drbd.d/* /etc/tgt/targets.conf /etc/tgt/conf.d/* /etc/target/saveconfig.json ' .
        '/etc/rtslib-fb-target/saveconfig.json /etc/nvmet/config.json /etc/nbd-server/config /etc/xen/*.cfg ' .
        '/etc/xen/auto/* /var/lib/lxc/*/config /var/lib/lxd/*/*/backup.yaml /var/lib/incus/*/*/backup.yaml ' .
        '/var/snap/lxd/common/lxd/*/*/backup.yaml';
    my $starts = qr/qemu|kvm|hypervisor|firecracker|crosvm|nbd|mount|swapon|cryptsetup|losetup|dmsetup|mdadm/;
    for my $file (glob($lists), map { glob(s/([^\w\/.-])/\\$1/gr . '/VirtualBox\ VMs/*/*.vmdk') } sort keys %homes) {
        next unless -f $file;
        my $at = 0;
        for my $line (split /\n/, text_of($file) // '') {
            $at++;
            next if $line =~ /^\s*[#;]/ && $file !~ /\.vmdk$/;
            next if $file =~ /\.service$/ && $line !~ $starts;
            push @found, "$file: $at:$line" if defined first_name(paths_in($line));
        }
    }
    # A machine that has not opened the disk yet, or no longer.
    for my $directory (glob '/proc/[0-9]*') {
        my $command = eval { word("$directory/comm") } // '';
        next unless $command =~ /^(qemu|kvm|cloud-hyp|firecracker|crosvm|nbd)/;
        my ($words, $named) = eval { text_of("$directory/cmdline") } // '';
        $named = first_name(paths_in($words));
        push @found, $directory =~ s{.*/}{process }r . " ($command) names $named" if defined $named;
    }
    return @found;
});
probe('proxmox', sub {
    return () unless grep { -e } '/etc/pve', '/var/lib/pve-cluster/config.db';
    -d '/etc/pve/nodes' or die "there is no /etc/pve/nodes: does pve-cluster run?\n";
    my @files = grep { m{/(qemu-server|lxc)/} } files(qr/\.conf$/, '/etc/pve/nodes');
    my (@found, %storages);
    for my $section (split /\n(?=\S)/, text_of('/etc/pve/storage.cfg') // '') {
        $storages{$1} = $2 if $section =~ /^\w+: *(\S+).*\n\s+path +(\S+)/s;
    }
    for my $file (@files, '/etc/pve/storage.cfg', '/etc/pve/mapping/pci.cfg') {
        my $at = 0;
        for my $line (split /\n/, text_of($file) // '') {
            $at++;
            my $named = grep { $line =~ /[ ,:=]\Q$_\E([,; ]|$)/ } @paths;
            my ($storage, $volume) = $line =~ /^\w+: *([\w.-]+):([^,\s]+)/;
            my @images = defined $storage && defined $storages{$storage} ? "$storages{$storage}/images/$volume" : ();
            $named ||= defined first_name(paths_in($line), @images);
            my ($addresses) = $line =~ /^hostpci\d+: *(?:host=)?([^,]+)/;
            ($addresses) = $line =~ /\bpath=([^,]+)/ if $file =~ /pci\.cfg$/;
            $named ||= grep { given($_) } split /;/, $addresses // '';
            push @found, "$file: $at:$line" if $named;
        }
    }
    return @found;
});

# In every mount namespace, and by number: a path may mean something else there.
probe('mounts', sub {
    my (%mounts, $readable);
    for my $file (glob '/proc/[0-9]*/mountinfo') {
        open my $input, '<', $file or next;
        while (my $mount = <$input>) {
            my @field = split ' ', $mount;
            $readable = 1;
            $mounts{"/dev/$majors{$field[2]} on $field[4]"} = 1 if exists $majors{$field[2]};
        }
    }
    die "no mounts of any process can be read\n" unless $readable;
    return sort keys %mounts;
});
# Is the disk open anywhere, and does the kernel grant exclusive access? udev may have it open for a moment after a
# write.
my ($users, $claimed);
for my $try (1 .. 10) {
    my %found;
    for my $file (glob '/proc/[0-9]*/fd/*') {
        my $node = node_of($file) // next;
        next unless grep { $_ eq $node } $kernel_name, @parts;
        my ($pid) = $file =~ m{/proc/(\d+)/};
        next if $pid == $$;
        my $command = '';
        if (open my $comm, '<', "/proc/$pid/comm") { chomp($command = <$comm> // ''); }
        $found{"/dev/$node by $command (process $pid)"} = 1;
    }
    $users = join "\n", sort keys %found;
    $claimed = '';
    for my $each ($device, map { "/dev/$_" } @parts) {
        if (sysopen my $claim, $each, O_RDONLY | O_EXCL) { close $claim; } else { $claimed .= "$each: $!\n"; }
    }
    last if $users eq '' && $claimed eq '';
    last if $claimed ne '' && $claimed !~ /busy/i;
    select undef, undef, undef, 0.1;
}
report('users', 0, $users);
report('claim', 0, $claimed);
my %other = (ends => 0, inside => 0, whole => 0);
open my $input, '<:raw', $device or do { report('contents', 1, "$device cannot be opened: $!"); exit };
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
    sysseek $input, $position, 0 or do { report('contents', 1, "byte $position of $device cannot be read: $!"); exit };
    while ($have < $length && $position + $have < $size) {
        my $read = sysread $input, $buffer, $length - $have, $have;
        unless ($read) {
            my $byte = $position + $have;
            report('contents', 1, "byte $byte of $device cannot be read: " . ($! || 'it ends there'));
            exit;
        }
        $have += $read;
    }
    $other{$where}++ if $buffer =~ /[^\0]/;
}
report('contents', 0, "$other{ends} " . ($other{inside} + $other{whole}));
PERL
# Samples that the clean-up of a run recorded: are they the same now?
left=$(left_file)
[ -r "$left" ] || { report left none; exit 0; }
read -r digest positions <"$left"
[ "$(digest_of "$dev" $positions)" = "$digest" ] && report left same || report left changed
