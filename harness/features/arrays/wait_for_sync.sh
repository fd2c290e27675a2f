# $1: the kernel's name of the array. Waits at most 2 s until it is in sync; prints "synced", or the progress.
cd "/sys/block/$1/md" || exit
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    # For a moment between creation and the start of the resync, sync_action is idle.
    if [ "$(cat sync_action) $(cat degraded) $(cat resync_start)" = "idle 0 none" ]; then echo synced; exit; fi
    sleep 0.1
done
cat sync_completed
