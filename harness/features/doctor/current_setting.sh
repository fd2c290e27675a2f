# shellcheck disable=SC2034 # read by write_settings.sh
# In a file that lists the allowed values, the current one is in brackets.
tab=$(printf '\t')
current() {
    value=$(cat "$1" 2>/dev/null)
    case $value in *\[*\]*) value=${value#*\[} value=${value%%\]*} ;; esac
}
