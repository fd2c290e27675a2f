# $0: hold_lease.bash, $1: the programs that it needs; then its arguments.
PATH="$PATH:/usr/sbin:/sbin"
for program in $1; do command -v "$program" >/dev/null || { echo "missing $program"; exit 1; }; done
shift
exec bash --norc -c "$0" virt-overhead-lease "$@"
