# $1: the file with the process's id, $2: its log, or empty; then the command that prints how it would be started, which
# is used if the process cannot be read.
# A ring of Linux AIO is a mapping of the process; a ring of io_uring is a file that it has open.
export PATH="$PATH:/usr/sbin:/sbin"
log=$2
if pid=$(cat "$1" 2>/dev/null) && [ -r "/proc/$pid/cmdline" ]; then
    printf 'native\t%s\n' "$(grep -c '/\[aio\]' "/proc/$pid/maps")"
    printf 'io_uring\t%s\n' "$(ls -l "/proc/$pid/fd" | grep -c 'anon_inode:\[io_uring\]')"
    [ -z "$log" ] || grep 'falling back to thread pool' "$log" | sed 's/^/log\t/'
    tr '\000' '\n' <"/proc/$pid/cmdline" | sed 's/^/argument\t/'
elif shift 2 && [ $# -gt 0 ]; then
    printf 'command\t%s\n' "$("$@")"
fi
