# shellcheck disable=SC2086 # lists of words
# Ends a command and all its descendants: members of its session or group, and their children (fio puts its jobs in
# separate sessions). TERM first, then KILL. Only builtins except sleep, because forks are expensive in a guest.
tree=" $1 " grown=yes
while [ "$grown" ]; do
  grown=
  for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    pid=${line%% *}
    case $tree in *" $pid "*) continue;; esac
    set -- ${line##*) }
    case $tree in *" $2 "*|*" $3 "*|*" $4 "*) tree="$tree$pid " grown=yes;; esac
  done
done
for signal in TERM KILL; do
  kill -$signal $tree 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    left=" "
    for pid in $tree; do
      read -r line 2>/dev/null <"/proc/$pid/stat" || continue
      set -- ${line##*) }
      [ "$1" = Z ] || left="$left$pid "
    done
    [ "$left" = " " ] && exit 0
    sleep 0.1
  done
  tree=$left
done
exit 1
