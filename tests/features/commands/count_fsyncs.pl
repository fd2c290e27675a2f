# What pveperf counts as fsyncs per second, by the description of its loop: for SECONDS, truncate one of 300 files,
# print 4001 bytes to it, fsync, close. The handle is buffered, so the data reaches the file when it is closed.
use strict;
use warnings;
use IO::Handle;
use Time::HiRes qw(gettimeofday tv_interval);

my $seconds = shift // 3;
my $directory = "perl.$$";
mkdir $directory or die "mkdir: $!";
my $line = 'A' x 4000 . "\n";
my ($begun, $synced, $elapsed) = ([gettimeofday], 0, 0);
while ($elapsed <= $seconds) {
    $synced++;
    open my $file, '>', "$directory/" . $synced % 300 or die "open: $!";
    print $file $line;
    $file->sync or die "fsync: $!";
    close $file or die "close: $!";
    $elapsed = tv_interval $begun;
}
printf "FSYNCS/SECOND: %.2f\n", $synced / $elapsed;
unlink glob "$directory/*";
rmdir $directory;
