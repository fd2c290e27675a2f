# shellcheck disable=SC2086 # lists of words
# shellcheck disable=SC2094 # the variable has the name of the pipe
# $1: a new directory. Then fio's command. Standard input: fio's job file. The script uses only what busybox has.
# A shell handles a signal only while it waits for a program in the background. First it removes what killed runs left.
# fio ends only when no job of it waits any more, so a signal also ends the commands in which they wait: its children.
#
# wait_until is the command of each job. $1 is its start, in milliseconds of the uptime. When the time has come, only one
# program must wake up and end: each takes 20 ms in an emulated guest. The first job notes when it waits. After fio has
# succeeded, the script prints that on standard error.
#
# /proc/uptime has steps of 10 ms. The third line of /proc/timer_list has nanoseconds ("now at 4711 nsecs"), if root reads
# it. That clock stands still while the machine is suspended, so it counts only if both clocks agree.
directory=$1 fio=; shift
stop() {
    [ -n "$fio" ] && kill $fio || return
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        set -- ${line##*) }
        [ "$2" != $fio ] || kill "${line%% *}"
    done
}
trap 'stop 2>/dev/null; exit 143' TERM INT HUP
for old in "${directory%/*}"/pacing-*; do
    if read -r pid 2>/dev/null <"$old/pid" && ! kill -0 "$pid" 2>/dev/null; then rm -rf "$old"; fi
done
mkdir -p "${directory%/*}" && mkdir "$directory" || exit 1
trap 'cd /; rm -rf "$directory"' EXIT
cd "$directory" && echo $$ >pid || exit 1
cat >wait_until <<'END' || exit 1
read -r now _ </proc/uptime
[ -e ready ] || echo "$now" >ready
now=${now%.*}${now#*.}0
{ read -r _; read -r _; read -r _ _ exact _; } 2>/dev/null </proc/timer_list
exact=${exact%??????}
[ "${exact:-0}" -ge "$now" ] && [ "$exact" -lt $((now + 50)) ] && now=$exact
left=$(($1 - now))
[ $left -gt 0 ] || exit 0
part=00$((left % 1000))
exec sleep "$((left / 1000)).${part#"${part%???}"}"
END
exec 9<&0
"$@" <&9 9<&- &
fio=$!
wait $fio || exit
if read -r ready <ready; then echo "fio was ready at $ready" >&2; fi
