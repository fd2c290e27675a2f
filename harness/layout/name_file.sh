# $1: the file, $2: its draft, $3: its inode and birth time.
ln -T "$2" "$1" || exit
case $3 in *" 0") ;; *) rm -f "$2";; esac
