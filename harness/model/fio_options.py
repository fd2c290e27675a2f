"""Which of fio's options a user's own fio file may have, and which virt-overhead sets itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.config.names import choices
from harness.model.fio_values import check_block_sizes, check_engine, number_in, pattern_of, rates_of, size_of

ALIASES: Mapping[str, str] = {
    "readwrite": "rw",
    "blocksize": "bs",
    "blocksize_range": "bsrange",
    "iodepth_batch_submit": "iodepth_batch",
    "iodepth_batch_complete": "iodepth_batch_complete_min",
    "wait_for_previous": "stonewall",
    "timeout": "runtime",
    "io_limit": "io_size",
    "fileoffset": "offset",
    "start_delay": "startdelay",
}
"""fio's other names of options."""

STONEWALL = "stonewall"
INCLUDE = "include"

Check = Callable[[str], object]


def _anything(value: str) -> None:
    """fio itself checks the value."""


def _count(value: str) -> None:
    size_of(value)


def _share(value: str) -> None:
    number_in(value, 0, 100)


def _flag(value: str) -> None:
    number_in(value, 0, 1)


ALLOWED: Mapping[str, Check] = {
    "rw": pattern_of,
    "rw_sequencer": _anything,
    "bs": lambda value: check_block_sizes("bs", value),
    "bsrange": lambda value: check_block_sizes("bsrange", value),
    "bssplit": lambda value: check_block_sizes("bssplit", value),
    "ioengine": check_engine,
    "iodepth": lambda value: number_in(value, 1, 1024),
    "iodepth_batch": lambda value: number_in(value, 0, 1024),
    "iodepth_batch_complete_min": lambda value: number_in(value, 0, 1024),
    "iodepth_batch_complete_max": lambda value: number_in(value, 0, 1024),
    "iodepth_low": lambda value: number_in(value, 0, 1024),
    "numjobs": lambda value: number_in(value, 1, 64),
    "rwmixread": _share,
    "rwmixwrite": _share,
    "percentage_random": _anything,
    "random_distribution": _anything,
    "rate": _anything,
    "rate_iops": rates_of,
    "rate_process": _anything,
    "rate_ignore_thinktime": _flag,
    "thinktime": _anything,
    "thinktime_spin": _anything,
    "thinktime_blocks": _count,
    "thinktime_blocks_type": _anything,
    "thinktime_iotime": _anything,
    "fsync": _count,
    "fdatasync": _count,
    "sync": _anything,
    "write_barrier": _count,
}
"""The options of the I/O pattern, which fio gets as they are. Each has a check of its value."""

_REGION = "the arm's region of the disk, which is the same for every section"
_DEVICE = "a region of the disk instead of files"
_TIMES = "the times of the profile"
_CACHE = "the cache of the arm: direct I/O, except for the twin of a mode with a cache"
_SEED = "the seed of the run, without a map of the blocks"
_DATA = "data that no layer can compress or drop"
_OUTPUT = "virt-overhead's own figures, from fio's histogram"
_STRUCTURE = "sections that run at the same time are one job"
_END = "each slice ends with its time"

OVERRIDDEN: Mapping[str, str] = {
    **dict.fromkeys(("size", "offset", "offset_increment", "offset_align"), _REGION),
    **dict.fromkeys(("filesize", "fill_device", "nrfiles", "openfiles", "file_service_type", "fallocate"), _DEVICE),
    **dict.fromkeys(("overwrite", "unlink", "create_on_open", "create_serialize", "create_fsync"), _DEVICE),
    **dict.fromkeys(("runtime", "time_based", "ramp_time", "loops", "io_size", "number_ios"), _TIMES),
    **dict.fromkeys(("direct", "buffered", "invalidate"), _CACHE),
    **dict.fromkeys(("randrepeat", "allrandrepeat", "randseed", "norandommap", "softrandommap"), _SEED),
    **dict.fromkeys(("refill_buffers", "scramble_buffers"), _DATA),
    **dict.fromkeys(("name", "description", "thread", "group_reporting", "new_group"), _STRUCTURE),
    **dict.fromkeys(("exitall", "exit_what", "exitall_on_error", "end_fsync", "fsync_on_close"), _END),
    **dict.fromkeys(("write_bw_log", "write_lat_log", "write_iops_log", "write_hist_log", "per_job_logs"), _OUTPUT),
    **dict.fromkeys(("log_avg_msec", "log_hist_msec", "log_hist_coarseness", "log_max_value", "log_offset"), _OUTPUT),
    **dict.fromkeys(("log_unix_epoch", "bwavgtime", "iopsavgtime", "percentile_list"), _OUTPUT),
    **dict.fromkeys(("clat_percentiles", "lat_percentiles", "slat_percentiles", "significant_figures"), _OUTPUT),
    **dict.fromkeys(("disable_lat", "disable_clat", "disable_slat", "disable_bw_measurement"), _OUTPUT),
    **dict.fromkeys(("gtod_reduce", "clocksource", "unified_rw_reporting", "disk_util"), _OUTPUT),
}
"""Options that virt-overhead sets itself, and what applies instead."""

_TARGET = "the target is the disk under test; remove the line"
_COMPRESSIBLE = "a layer could compress or drop such data; remove the line"
_COMMAND = "a workload must not run commands; remove the line"
_TOGETHER = "sections start together or one after the other; remove the line, or use stonewall"

_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("filename", "directory", "filename_format", "unique_filename", "opendir", "lockfile"), _TARGET),
    **dict.fromkeys(("zero_buffers", "buffer_pattern", "buffer_compress_percentage"), _COMPRESSIBLE),
    **dict.fromkeys(("buffer_compress_chunk", "dedupe_percentage", "dedupe_mode"), _COMPRESSIBLE),
    **dict.fromkeys(("exec_prerun", "exec_postrun"), _COMMAND),
    **dict.fromkeys(("startdelay", "wait_for", "flow"), _TOGETHER),
    "io_submit_mode": "fio sometimes does not end with it; remove the line",
    "allow_mounted_write": "virt-overhead never writes to a mounted disk; remove the line",
}


def check_option(name: str, value: str | None) -> None:
    """Raise ValueError if a file must not have this option, or not with this value. `name` is not an alias."""
    if name == STONEWALL:
        if value is not None:
            _flag(value)
    elif name in ALLOWED:
        if not value:
            raise ValueError("needs a value")
        ALLOWED[name](value)
    elif name not in OVERRIDDEN:
        why = _REFUSED.get(name)
        raise ValueError(why or f"is not an option of a workload; remove the line; {choices(name, ALLOWED)}")
    if value is not None and ("$" in value or "`" in value):
        raise ValueError("fio would replace $ and ` by values of the machine; write the value itself")
    if value is not None and not value.isprintable():
        raise ValueError("allowed: printable characters")
