# shellcheck disable=SC2086 # lists of words
# $1: the directory. Prints `free`, `ended HOLDER`, or the reason for a failure. It ends only a process that has the
# locked directory open as its lock, because another process may have the same process id by now.
export LC_ALL=C
[ -e "$1" ] || { echo free; exit; }
cd "$1" && exec 9<. || exit
if flock --shared --nonblock 9; then echo free; exit; fi
{ read -r holder && read -r pid start; } 2>/dev/null <lease || { echo "the holder has no name yet"; exit; }
read -r stat 2>/dev/null </proc/"$pid"/stat
set -- ${stat##*) }
[ "/proc/$pid/fd/9" -ef . ] && [ "${20}" = "$start" ] || { echo "$holder: its process is not visible there"; exit; }
kill "$pid"
for pause in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "/proc/$pid/fd/9" -ef . ] || { echo "ended $holder"; exit; }
    [ "$pause" -ne 10 ] || kill -KILL "$pid"
    sleep 0.1
done
echo "$holder: its process does not end"
