# Paths. For each, the bytes that its file system has allocated to the file or to the files of the directory.
for path; do
    if [ -e "$path" ]; then du --summarize --block-size=1 "$path" | cut -f 1 || exit; else echo 0; fi
done
