"""What a command of QEMU's human monitor needs of its caller: PVE::API2::Qemu::HMPPerms."""

from __future__ import annotations

from pve_double.errors import PveError
from pve_double.permissions import ROOT
from pve_double.qemu.volumes import Request

_FREE = frozenset({"help", "?", "info"})
_FOR_ROOT = """
backup block_stream change chardev-add chardev-change chardev-remove client_migrate_info device_add device_del
drive_add drive_backup drive_del drive_mirror dump-guest-memory dumpdtb gdbserver hostfwd_add hostfwd_remove logfile
mce memsave migrate migrate_incoming migrate_recover nbd_server_add nbd_server_remove nbd_server_start
nbd_server_stop netdev_add netdev_del nmi o object_add object_del pcie_aer_inject_error pmemsave qom-set savevm-end
savevm-start screendump snapshot_blkdev watchdog_action wavcapture xen-event-inject xen-event-list
"""
_FOR_MODIFIERS = """
announce_self backup_cancel balloon block_job_cancel block_job_complete block_job_pause block_job_resume
block_job_set_speed block_resize block_set_io_throttle boot_set c calc_dirty_rate cancel_vcpu_dirty_limit
chardev-send-break closefd commit cont cpu delvm eject exit_preconfig expire_password getfd gpa2hpa gpa2hva gva2gpa
i loadvm log migrate_cancel migrate_continue migrate_pause migrate_set_capability migrate_set_parameter
migrate_start_postcopy mouse_button mouse_move mouse_set one-insn-per-tb p print q qemu-io qom-get qom-list quit
replay_break replay_delete_break replay_seek ringbuf_read ringbuf_write s savevm sendkey set_link set_password
set_vcpu_dirty_limit snapshot_blkdev_internal snapshot_delete_blkdev_internal stop stopcapture sum sync-profile
system_powerdown system_reset system_wakeup trace-event x x_colo_lost_heartbeat xp
"""
_ROOT_ALONE = frozenset(_FOR_ROOT.split())
_MODIFY = frozenset(_FOR_MODIFIERS.split())


def require_for_command(request: Request, name: str) -> None:
    """403 or PVE's 500 unless the caller may give this command; root may give any, also one that nobody knows."""
    if request.user == ROOT or name in _FREE:
        return
    if name in _ROOT_ALONE:
        raise PveError(f"root-only command '{name}'")
    if name not in _MODIFY:
        raise PveError(
            f"command '{name}' non-existent or not assigned a required permission yet, limiting to root user"
        )
    request.require("/", "Sys.Modify")
