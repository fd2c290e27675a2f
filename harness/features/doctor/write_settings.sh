# shellcheck disable=SC2154 # set by current_setting.sh
# Reads path and value per line on stdin. Prints path, the value of the file after writing, and the kernel's error.
# A file that no longer exists (a disk was pulled, a CPU switched off) has no setting to restore, and is skipped.
while IFS=$tab read -r path wanted; do
    [ -e "$path" ] || continue
    error=''
    current "$path"
    [ "$value" = "$wanted" ] || error=$( { printf '%s\n' "$wanted" >"$path"; } 2>&1)
    current "$path"
    printf '%s\t%s\t%s\n' "$path" "$value" "$(printf %s "$error" | tr '\n\t' '  ')"
done
