# shellcheck disable=SC2154 # set by device_facts.sh
# shellcheck disable=SC2034 # read by inspect_disk.sh
# Shell functions. `digest_of DEVICE POSITION...` prints a digest of the samples at these positions, in bytes.
# `left_file` prints the path of the file for samples of the device whose facts were just read.
sample_bytes=SAMPLE_BYTES whole_bytes=WHOLE_BYTES
digest_of() {
    perl -e '
        my $device = shift;
        open my $input, "<:raw", $device or die;
        for my $position (@ARGV) {
            my ($buffer, $have) = ("", 0);
            sysseek $input, $position, 0 or die;
            while ($have < SAMPLE_BYTES) {
                my $read = sysread $input, $buffer, SAMPLE_BYTES - $have, $have or die "byte $position";
                $have += $read;
            }
            print $buffer;
        }' "$@" | sha256sum | cut -d" " -f1
}
left_file() { echo "LEFT_DIRECTORY/$(printf "%s" "$identity $sectors" | sha256sum | cut -c1-32)"; }
