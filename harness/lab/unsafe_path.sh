# shellcheck disable=SC2046 # lists of words
# Shell function `unsafe PATH`: prints why another user could exchange a part of this path, or change what is at its
# end; nothing if nobody could. Links are followed, and each of them is checked as well. A sticky directory keeps the
# entries of its users apart. The end of a path that does not exist yet is not checked.
unsafe() ( # PATH
    me=$(id -u) || exit 1
    belongs() { # UID PATH
        [ "$1" = 0 ] || [ "$1" = "$me" ] || { echo "$2 belongs to user $1 ($(stat -c %U "$2"))"; exit; }
    }
    others_of() { # GID: the users other than root and this one that are in the group
        command -v getent >/dev/null || { echo "somebody (getent is not installed there)"; return; }
        members=$(getent group "$1")
        members=${members##*:}
        for member in $(echo "$members" | tr , ' '); do
            case $(id -u "$member" 2>/dev/null) in 0|"$me") ;; *) echo "$member";; esac
        done
        getent passwd | while IFS=: read -r member _ uid gid _; do
            [ "$gid" != "$1" ] || [ "$uid" = 0 ] || [ "$uid" = "$me" ] || echo "$member"
        done
    }
    walk() { # PATH DEPTH: sets at to where it leads
        [ "$2" -lt 40 ] || { echo "$1 has too many links"; exit; }
        rest=$1/
        case $1 in /*) at=; check /;; esac
        while [ -n "$rest" ]; do
            part=${rest%%/*} rest=${rest#*/}
            case $part in
            ''|.) continue;;
            ..) at=${at%/*}; continue;;
            esac
            [ -e "$at/$part" ] || [ -L "$at/$part" ] || exit 0
            if [ -L "$at/$part" ]; then
                belongs "$(stat -c %u "$at/$part")" "$at/$part"
                set -- "$1" "$2" "$rest"
                walk "$(readlink "$at/$part")" "$(($2 + 1))"
                rest=$3
            else
                at=$at/$part
                check "$at"
            fi
        done
    }
    check() { # PATH
        set -- "$1" $(stat -c '%u %g %a' "$1")
        [ $# -eq 4 ] || { echo "$1 cannot be examined"; exit; }
        belongs "$2" "$1"
        case $4 in [1357]???) [ ! -d "$1" ] || return 0;; esac
        case $4 in *[2367]) echo "all users may write to $1"; exit;; esac
        case $4 in *[2367]?)
            # With an access control list, these bits are the most that any entry of the list allows.
            case $(ls -ld "$1") in ??????????+*) echo "the access control list of $1 lets others write"; exit;; esac
            [ "$3" = 0 ] || {
                other=$(others_of "$3" | head -n 1)
                [ -z "$other" ] || { echo "$other may write to $1, as a member of group $3"; exit; }
            };;
        esac
    }
    walk "$1" 0
)
