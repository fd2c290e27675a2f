# $1: the log, $2: the run, $3: the file, $4: the digest of its content, which is on standard input. The input may end
# early, because the run or the connection ended: then the file stays as it was.
umask 022 && mkdir -p "${1%/*}" && umask 077 && mkdir -p "$1/$2" && cd "$1/$2" || exit
draft=.$3.$$
if cat >"$draft" && [ "$(sha256sum <"$draft")" = "$4  -" ]; then
    sync "$draft" && mv -f "$draft" "$3" && sync . .. "$1"
else
    rm -f "$draft"
    rmdir --ignore-fail-on-non-empty "../$2"
    echo "the record did not arrive as a whole" >&2
    exit 1
fi
