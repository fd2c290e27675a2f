# One process for everything: on an emulated host, a process costs more than the reading. $ARGV[0]: the root of the tree
# to read. Prints lines "DISK<tab>KEY<tab>VALUE", at most 200 characters each.
use strict;
use Cwd 'realpath';
my ($root, @disks) = @ARGV;
my $address = qr/^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$/;
my ($disk, $paths, %named);
sub text { # FILE: its first line
    open my $input, '<:raw', $_[0] or return;
    my $read = sysread $input, my $text, 300;
    return unless $read;
    ($text) = split /\n/, $text;
    return $text;
}
sub say_it {
    my ($key, $text) = @_;
    return unless defined $text;
    $text =~ s/[^\x20-\x7e]/ /g;
    $text =~ s/^ +| +$//g;
    print "$disk\t$key\t", substr($text, 0, 200), "\n" if $text ne '';
}
sub say_address { # ADDRESS PORT: of the next path to a disk of another machine
    my ($at, $port) = @_;
    return unless defined $at;
    $at = "[$at]" if $at =~ /:/;
    say_it('network/address' . $paths++ => defined $port ? "$at:$port" : $at);
}
sub names { opendir my $input, $_[0] or return; return sort grep { !/^\.\.?$/ } readdir $input }
sub first { for my $file (@_) { my $text = text($file); return $text if defined $text } return }
sub udev_names { # PCI ADDRESS: vendor and model by udev's database
    my ($at) = @_;
    return if $root ne '' || $at !~ $address;
    $named{$at} //= `udevadm info --query=property --path=/sys/bus/pci/devices/$at 2>/dev/null`;
    return $named{$at};
}
for (@disks) {
    ($disk, $paths) = ($_, 0);
    next if $disk !~ /^[A-Za-z0-9!._-]+$/;
    my $block = "$root/sys/class/block/$disk";
    next unless -e $block;
    my $real = realpath($block);
    say_it(exists => 1);
    say_it($_ => text("$block/$_")) for qw(size loop/backing_file md/level md/chunk_size md/raid_disks dm/uuid);
    say_it($_ => text("$block/queue/$_"))
        for qw(rotational logical_block_size physical_block_size scheduler write_cache);
    say_it("device/$_" => text("$block/device/$_")) for qw(vendor model rev firmware_rev raid_level);
    my @below = map { realpath("$block/slaves/$_") // () } names("$block/slaves");
    say_it(members => join ' ', map { (-e "$_/partition" ? s{/[^/]*$}{}r : $_) =~ s{.*/}{}r } @below);
    # A disk of an NVMe subsystem is not below its controller.
    my ($nvme, @others) = grep { /^nvme\d+$/ } names("$block/device");
    for my $controller ($nvme ? map { "$block/device/$_" } $nvme, @others : "$block/device") {
        next if (my $fabric = text("$controller/transport") // 'pcie') eq 'pcie';
        my %part = (text("$controller/address") // '') =~ /(\w+)=([^,]+)/g;
        say_it('network/protocol' => $fabric);
        say_it('network/target' => text("$controller/subsysnqn"));
        say_address(@part{qw(traddr trsvcid)});
    }
    my $at = $nvme && $real =~ m{/nvme-subsystem/} ? realpath("$block/device/$nvme") : $real;
    say_it(sysfs => substr $at, length $root);
    for (my ($node, $pci); $at =~ m{/devices/}; $at =~ s{/[^/]*$}{}) {
        my ($here) = $at =~ m{([^/]+)$};
        if ($here =~ /^ata\d+$/) {
            my @link = glob "$at/link*/ata_link/*";
            say_it(sata_spd => first(map { "$_/sata_spd" } @link));
            say_it(sata_most => first(map { "$_/hw_sata_spd_limit" } @link));
        }
        if ($here =~ /^port-\d/) {
            my @phy = glob "$at/phy-*/sas_phy/*";
            say_it(sas_rate => first(map { "$_/negotiated_linkrate" } @phy));
            say_it(sas_most => first(map { "$_/maximum_linkrate" } @phy));
        }
        if ($here =~ /^session\d+$/ && -e "$at/iscsi_session/$here") {
            say_it('network/protocol' => 'iscsi');
            say_it('network/target' => text("$at/iscsi_session/$here/targetname"));
            for (glob "$at/connection*/iscsi_connection/*") {
                say_address(map { text($_) } "$_/persistent_address", "$_/persistent_port");
            }
        }
        if (my @host = glob "$at/scsi_host/host*") { # names of mpt3sas, smartpqi and hpsa
            my @firmware = map { ("$_/version_fw", "$_/firmware_version", "$_/firmware_revision") } @host;
            say_it(host_firmware => first(@firmware));
            say_it(host_model => first(map { ("$_/board_name", "$_/model") } @host));
        }
        my $own = text("$at/numa_node");
        say_it(numa => $node = $own) if defined $own && !defined $node;
        if ($here =~ $address && !$pci) {
            $pci = $here;
            say_it(pci => $here);
            say_it("pci/$_" => text("$at/$_"))
                for qw(vendor device current_link_speed current_link_width max_link_speed max_link_width);
            my $driver = readlink "$at/driver";
            say_it('pci/driver' => $driver =~ s{.*/}{}r) if defined $driver;
            my $udev = udev_names($here) // '';
            say_it('pci/vendor_name' => $udev =~ /^ID_VENDOR_FROM_DATABASE=(.*)/m ? $1 : undef);
            say_it('pci/model_name' => $udev =~ /^ID_MODEL_FROM_DATABASE=(.*)/m ? $1 : undef);
        }
    }
}
