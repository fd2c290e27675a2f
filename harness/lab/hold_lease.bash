# $1: the directory, $2: seconds of silence, $3: the holder, $4: the time. Its first line is one of
#   held PID START | busy HOLDER | refused WHY | missing PROGRAM
# Then it prints every line that it reads. Its last line is `over WHY`, if it can still print it.
# The lock is on the directory. The file in it is for people, and is replaced and removed only under the lock. flock
# waits for a moment, because a doctor holds the lock for a moment to check whether it is free.
export LC_ALL=C
directory=$1 silence=$2 holder=$3 since=$4
refuse() { echo "refused $*"; exit 1; }
same() { [ ! -L "$directory" ] && [ "$directory" -ef . ]; }
umask 077
mkdir "$directory" 2>/dev/null
[ ! -L "$directory" ] && [ -d "$directory" ] || refuse "$directory is not a directory"
cd -P "$directory" && exec 9<. && same || refuse "$directory cannot be opened"
case $(stat -c %u:%a .) in
    $EUID:7[0145][0145]) ;;
    *) refuse "$directory does not belong to user $EUID alone: $(stat -c 'owner %u, mode %a' .)" ;;
esac
chmod 0700 . || refuse "the mode of $directory cannot be changed"
flock --wait 1 --conflict-exit-code 75 9
case $? in
    0) ;;
    75)
        [ -f lease ] && [ ! -L lease ] && [ -O lease ] && read -r found <lease
        echo "busy ${found:-a run without a name so far}"
        exit 1 ;;
    *) refuse "$directory cannot be locked" ;;
esac
same || refuse "$directory was replaced meanwhile"
if [ -L lease ] || [ -e lease ]; then
    [ ! -L lease ] && [ -f lease ] && [ -O lease ] || refuse "$directory/lease is not a regular file of user $EUID"
    rm -f lease
fi
read -r -a stat </proc/$$/stat
set -C
printf '%s, since %s\n%s\n' "$holder" "$since" "$$ ${stat[21]}" >lease || refuse "$directory/lease cannot be written"
trap 'rm -f lease' EXIT
over() { echo "over $*"; exit; }
echo "held $$ ${stat[21]}"
# The time of `read` is that of the wall clock: if somebody sets it, it ends too early, perhaps within a line. /proc/uptime
# shows the real time.
uptime() { read -r now _ </proc/uptime && now=${now%.*}; }
uptime; last=$now part=
while :; do
    read -r -t "$silence" beat
    status=$?
    uptime
    beat=$part$beat part=
    if [ $status -gt 128 ]; then
        [ $((now - last)) -lt "${silence%.*}" ] || over "the host received nothing from this run for $silence s"
        part=$beat
        continue
    fi
    [ $status -eq 0 ] || exit
    last=$now
    same || over "$directory was replaced on the host"
    echo "$beat"
done
