# Standard input: the times, in seconds of the machine's uptime. Arguments: how many files belong to disks, then
# the files, those of disks first. Only the disks must be read before the next slice starts, so the times before and
# after their reading are printed: `@ BEGUN ENDED`, then `PATH:LINE` for each line of each file. The files stay open,
# because on an emulated host opening them takes longer than reading. perl is part of every Debian and Proxmox VE, and
# one process costs less than a program for each reading. The lines are selected by one search in each content: a search
# in each line took an emulated host 3 s for 100 readings, which is ten times as long.
#
# /proc/uptime has steps of 10 ms, in which a fast disk moves more bytes than the check of bytes tolerates. So the clock
# behind it (CLOCK_BOOTTIME, 7) is read with the system call clock_gettime, whose number depends on the machine. perl's
# own module for that, Time::HiRes, is not in Debian's perl-base. On other machines, /proc/uptime is read.
use Config;
my $clock_gettime = {x86_64 => 228, aarch64 => 113}->{(split /-/, $Config{archname})[0]};
my $disks = shift;
my %files;
for my $path ('/proc/uptime', @ARGV) { open($files{$path}, '<', $path) or delete $files{$path} }
sub content {
    my ($path) = @_;
    my ($all, $part) = ('', '');
    sysseek($files{$path}, 0, 0);
    while (sysread($files{$path}, $part, 1 << 16)) { $all .= $part }
    return $all;
}
sub now {
    my $moment = pack('q2', 0, 0);
    if ($clock_gettime and syscall($clock_gettime, 7, $moment) == 0) {
        my ($seconds, $ns) = unpack('q2', $moment);
        return $seconds + $ns / 1e9;
    }
    return (split ' ', content('/proc/uptime'))[0];
}
my @paths = grep { exists $files{$_} } @ARGV;
my ($gone) = grep { !exists $files{$_} } @ARGV[0 .. $disks - 1];
die "$gone: the device is gone\n" if defined $gone;
my @samples;
for my $at (split ' ', <STDIN>) {
    while ((my $left = $at - now()) > 0) { select(undef, undef, undef, $left) }
    my $begun = now();
    my @contents = map { content($_) } @paths[0 .. $disks - 1];
    my $ended = now();
    push @samples, [$begun, $ended, @contents, map { content($_) } @paths[$disks .. $#paths]];
}
for (@samples) {
    my ($begun, $ended, @contents) = @$_;
    printf "@ %.6f %.6f\n", $begun, $ended;
    for my $path (@paths) {
        my $content = shift @contents;
        print "$path:$1\n" while $content =~ /^((?:PATTERN).*)/mg;
    }
}
