# It may not have started yet.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    if read -r pid 2>/dev/null <"$1/pid"; then kill "$pid"; break; fi
    sleep 0.2
done
