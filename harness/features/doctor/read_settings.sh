# shellcheck disable=SC2154 # set by current_setting.sh
# Reads one path per line on stdin; prints path and value of each file that exists.
while read -r path; do [ ! -e "$path" ] || { current "$path"; printf '%s\t%s\n' "$path" "$value"; }; done
