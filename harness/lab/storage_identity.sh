# Shell function `identity_of PLACE AT`: prints what no other storage of this host has. The number of a directory's
# device is not part of it, because it changes when the disk is attached or mounted again.
lvm_fact() { # COMMAND FIELD NAME
    "$1" --noheadings -o "$2" "$3" | tr -d ' '
}
identity_of() {
    case $1 in
    volume_group) lvm_fact vgs vg_uuid "$2";;
    thin_pool) lvm_fact lvs lv_uuid "$2";;
    directory) file_of "$2/." | tr '\n' ' ' && filesystem_of "$2/.";;
    *) "identify_$1" "$2";; # of a feature
    esac
}
