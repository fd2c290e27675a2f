# Reads lines. A path: that device is opened. An empty line: the device that was opened last is closed. After each line
# it prints the number of open devices, or why the device cannot be opened. With its input, it ends.
hold() { # NUMBER
    echo "$1"
    while read -r path && [ -n "$path" ]; do
        if { hold $(($1 + 1)); } 3<"$path"; then echo "$1"; fi
    done
}
hold 0
