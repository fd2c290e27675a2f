"""Every option of fio in a user's own file: used, not used because virt-overhead sets it itself, or refused. Pure.

An option without effect on what is measured is accepted and listed. Only one that would mislead or harm is refused.
The options are those of fio 3.33 to 3.42, by `fio --cmdhelp=all` and HOWTO.rst.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness.config.names import choices, near
from harness.model.job import SIZES, parse_fio_seconds, parse_fio_size, parse_rates

QUEUEING_ENGINES = ("libaio", "io_uring", "posixaio")
"""Engines that keep `iodepth` I/Os in flight. The others wait for each I/O."""
ENGINES = (*QUEUEING_ENGINES, "psync", "sync", "pvsync", "pvsync2")
"""Engines that read and write the target itself, and that fio has on host and guest."""
EQUIVALENT_ENGINES: Mapping[str, str] = {"windowsaio": "libaio", "linuxaio": "libaio", "aio": "libaio"}
"""Other names of engines, and that of another system, with what they are on Linux."""

_LARGEST_BS = 16 * 1024**2
_FORMS = {
    "ba": (re.compile(r"[^,:/-]+(,[^,:/-]+){0,2}"), "4k, or 4k,64k for reads and writes"),
    "bs": (re.compile(r"[^,:/-]+(,[^,:/-]*){0,2}|,[^,:/-]+(,[^,:/-]*)?"), "4k, or 4k,64k for reads and writes"),
    "bsrange": (re.compile(r"[^,:/-]+[:-][^,:/-]+(,[^,:/-]+[:-][^,:/-]+){0,2}"), "4k-64k"),
    "bssplit": (
        re.compile(
            r"[^,:/-]+(/[0-9]{0,3})?(:[^,:/-]+(/[0-9]{0,3})?)*(,[^,:/-]+(/[0-9]{0,3})?(:[^,:/-]+(/[0-9]{0,3})?)*){0,2}"
        ),
        "4k/60:64k/40",
    ),
}
_PATTERN = re.compile(r"(?P<rw>[a-z]+)(:[0-9]{1,12}[kmg]?)?")
_PATTERNS = (
    *("read", "write", "randread", "randwrite", "rw", "readwrite", "randrw"),
    *("trim", "randtrim", "trimwrite"),
)

ALIASES: Mapping[str, str] = {
    "readwrite": "rw",
    "blocksize": "bs",
    "blocksize_range": "bsrange",
    "blocksize_unaligned": "bs_unaligned",
    "blockalign": "ba",
    "iodepth_batch_submit": "iodepth_batch",
    "iodepth_batch_complete": "iodepth_batch_complete_min",
    "wait_for_previous": "stonewall",
    "timeout": "runtime",
    "io_limit": "io_size",
    "fileoffset": "offset",
    "start_delay": "startdelay",
    "fill_fs": "fill_device",
    "nr_files": "nrfiles",
    "iomem": "mem",
    "mem_align": "iomem_align",
    "ratemin": "rate_min",
    "ratecycle": "rate_cycle",
    "disable_bw": "disable_bw_measurement",
    "ss": "steadystate",
    "ss_dur": "steadystate_duration",
    "ss_ramp": "steadystate_ramp_time",
    "ss_interval": "steadystate_check_interval",
    "data_placement": "dataplacement",
    "fdp_pli": "plids",
    "fdp_pli_select": "plid_select",
}
"""fio's other names of options."""

STONEWALL = "stonewall"
INCLUDE = "include"
STARTDELAY = "startdelay"
WAIT_FOR = "wait_for"


def check_block_sizes(option: str, value: str) -> None:
    """Raise ValueError if the value of bs, ba, bsrange or bssplit is not one that fio accepts on a disk.

    Sizes that are no multiple of the disk's blocks are rounded up later.
    """
    form, example = _FORMS[option]
    if form.fullmatch(value) is None:
        raise ValueError(f"not block sizes of reads and writes; allowed: for example {example}")
    for match in SIZES[option].finditer(value):
        if not 0 < parse_fio_size(match["size"]) <= _LARGEST_BS:
            raise ValueError(f'"{match["size"]}" is not a block size; allowed: 1 byte to 16m')


def parse_pattern(value: str) -> str:
    """fio's name of the pattern in the option rw: "randread" of "randread:8"."""
    match = _PATTERN.fullmatch(value)
    if re.fullmatch(r"[a-z]+:-[0-9]+[a-z]*", value):
        raise ValueError("backwards patterns would leave the arm's region; remove the part after the colon")
    if match is None or match["rw"] not in _PATTERNS:
        broken = " that writes (fio only trims then)" if value == "randtrimwrite" else ""
        raise ValueError(f"no such pattern{broken}; {choices(value, _PATTERNS)}")
    return "rw" if match["rw"] == "readwrite" else match["rw"]


def check_engine(value: str) -> None:
    """Raise ValueError for an engine that bypasses the disk under test, or that is not everywhere."""
    allowed = (*ENGINES, *EQUIVALENT_ENGINES)
    if value not in allowed:
        raise ValueError(f"this engine is not one that reads and writes the disk under test; {choices(value, allowed)}")


def parse_number(value: str, low: int, high: int) -> int:
    """The whole number in `value`, within these limits."""
    if not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
        raise ValueError(f"allowed: a whole number, {low} to {high}")
    return int(value)


_DISTRIBUTION = re.compile(r"(random|zipf|pareto|normal|gauss|zoned)(:[0-9.,:/]+)?")


def check_shares(value: str) -> None:
    """Raise ValueError if the value is not a share of reads, and perhaps one of writes and of trims, in percent."""
    shares = value.split(",")
    if len(shares) > 3:
        raise ValueError("allowed: at most three shares in percent, for example 50,30")
    for share in shares:
        parse_number(share.strip(), 0, 100)


def check_distribution(value: str) -> None:
    """Raise ValueError if the value is not a distribution over the region, whatever its size."""
    if value.startswith("zoned_abs"):
        raise ValueError("zones of a fixed size do not fit every region; allowed: zoned, with shares of the region")
    if _DISTRIBUTION.fullmatch(value) is None:
        raise ValueError("allowed: random, zipf, pareto, normal or zoned with numbers, for example zipf:1.2")


Check = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Used:
    """fio gets the option as it is."""

    check: Check
    """Raises ValueError for a value that cannot be used."""
    of: str | None = None
    """The only engine that has the option; None if it is not one of an engine."""
    is_flag: bool = False
    """Whether it needs no value."""


@dataclass(frozen=True, slots=True)
class NotUsed:
    """fio does not get the option."""

    instead: str
    """What applies instead, in words."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The option would mislead or harm, unless it has a value that switches it off."""

    why: str
    off: tuple[str, ...] = ("0",)


Option = Used | NotUsed | Refused


def _require_number(low: int, high: int) -> Check:
    return lambda value: parse_number(value, low, high)


def _require_one_of(*allowed: str) -> Check:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(choices(value, allowed))

    return check


_SHARE = _require_number(0, 100)
_FLAG = _require_number(0, 1)
_BATCH = _require_number(0, 1024)

_USED: Mapping[str, Used] = {
    "rw": Used(parse_pattern),
    "rw_sequencer": Used(_require_one_of("sequential", "identical")),
    "bs": Used(lambda value: check_block_sizes("bs", value)),
    "ba": Used(lambda value: check_block_sizes("ba", value)),
    "bsrange": Used(lambda value: check_block_sizes("bsrange", value)),
    "bssplit": Used(lambda value: check_block_sizes("bssplit", value)),
    "bs_is_seq_rand": Used(_FLAG),
    "kb_base": Used(_require_one_of("1024", "1000")),
    "ioengine": Used(check_engine),
    "iodepth": Used(_require_number(1, 1024)),
    "iodepth_batch": Used(_BATCH),
    "iodepth_batch_complete_min": Used(_BATCH),
    "iodepth_batch_complete_max": Used(_BATCH),
    "iodepth_low": Used(_BATCH),
    "serialize_overlap": Used(_FLAG),
    "numjobs": Used(_require_number(1, 64)),
    "rwmixread": Used(_SHARE),
    "rwmixwrite": Used(_SHARE),
    "percentage_random": Used(check_shares),
    "random_distribution": Used(check_distribution),
    "rate": Used(parse_rates),
    "rate_iops": Used(parse_rates),
    "rate_process": Used(_require_one_of("linear", "poisson")),
    "rate_ignore_thinktime": Used(_FLAG),
    "thinktime": Used(parse_fio_seconds),
    "thinktime_spin": Used(parse_fio_seconds),
    "thinktime_blocks": Used(parse_fio_size),
    "thinktime_blocks_type": Used(_require_one_of("complete", "issue", "all_blocks")),
    "thinktime_iotime": Used(parse_fio_seconds),
    "fsync": Used(parse_fio_size),
    "fdatasync": Used(parse_fio_size),
    "sync": Used(_require_one_of("none", "0", "sync", "1", "dsync")),
    "write_barrier": Used(parse_fio_size),
    "fixedbufs": Used(_FLAG, of="io_uring", is_flag=True),
    "registerfiles": Used(_FLAG, of="io_uring", is_flag=True),
    "nonvectored": Used(_require_number(-1, 1), of="io_uring"),
    "sqthread_poll": Used(_FLAG, of="io_uring", is_flag=True),
    "force_async": Used(_BATCH, of="io_uring"),
}

_TARGET = "the disk under test, which all sections share"
_REGION = "the arm's region of the disk, which is the same for every section"
_DEVICE = "a region of the disk instead of files"
_TIMES = "the times of the profile"
_CACHE = "the cache of the arm: direct I/O, except for the twin of a mode with a cache"
_SEED = "the seed of the run, without a map of the blocks"
_DATA = "data that no layer can compress or drop"
_OUTPUT = "virt-overhead's own figures, from fio's histogram"
_STRUCTURE = "sections that run at the same time are one job"
_END = "each slice ends with its time"
_ERRORS = "an error ends the slice, and the cell has no figure; a slow I/O is measured like any other"
_PLACE = "the CPUs, memory and priority that fio has by itself, the same in every arm"
_HOST = "the settings that the host has already"
_PREPARED = "virt-overhead prepares the disk itself, and never runs a command from a file"
_NO_VERIFY = "nothing is verified"
_NO_TRIM = "nothing is trimmed"
_NO_REPLAY = "no trace is replayed"
_NO_ZONES = "the disk is used without zones"
_NO_FLOW = "every section runs at its own speed"
_NO_SEARCH = "the depth of the file, which stays as it is"
_NO_HINTS = "no hints to the disk, because a guest's do not reach it"
_NO_RATE_CHECK = "a slice below the rate is measured like any other"
_SUBMIT = "each process submits its own I/O, because fio sometimes does not end with offload"
_WAIT = "fio's own way to wait for completions, the same in every arm"

_NOT_USED: Mapping[str, NotUsed] = {
    name: NotUsed(instead)
    for instead, names in {
        _TARGET: "filename directory filename_format unique_filename opendir lockfile filetype allow_file_create "
        "allow_mounted_write",
        _REGION: "size offset offset_increment offset_align",
        _DEVICE: "filesize fill_device nrfiles openfiles file_service_type fallocate file_append overwrite unlink "
        "unlink_each_loop create_on_open create_serialize create_fsync",
        _TIMES: "runtime time_based ramp_time ramp_size loops io_size number_ios steadystate steadystate_duration "
        "steadystate_ramp_time steadystate_check_interval",
        _CACHE: "direct buffered invalidate fadvise_hint pre_read sync_file_range uncached",
        _SEED: "randrepeat allrandrepeat randseed norandommap softrandommap random_generator",
        _DATA: "refill_buffers scramble_buffers zero_buffers buffer_pattern buffer_compress_percentage "
        "buffer_compress_chunk dedupe_percentage dedupe_mode dedupe_global dedupe_working_set_percentage",
        _STRUCTURE: "name description thread threads group_reporting new_group",
        _END: "exitall exit_what exitall_on_error end_fsync end_syncfs fsync_on_close",
        _ERRORS: "continue_on_error ignore_error error_dump max_latency",
        _OUTPUT: "write_bw_log write_lat_log write_iops_log write_hist_log write_iolog per_job_logs log_entries "
        "log_avg_msec log_hist_msec log_hist_coarseness log_max_value log_window_value log_offset log_prio "
        "log_issue_time log_compression log_compression_cpus log_store_compressed log_unix_epoch log_alternate_epoch "
        "log_alternate_epoch_clock_id job_start_clock_id bwavgtime iopsavgtime percentile_list clat_percentiles "
        "lat_percentiles slat_percentiles block_error_percentiles significant_figures disable_lat disable_clat "
        "disable_slat disable_bw_measurement gtod_reduce gtod_cpu clocksource unified_rw_reporting disk_util unit_base "
        # Options of the command line, which people also write into files. fio itself refuses some of them there.
        "output output-format append-terse terse-version minimal eta eta-newline eta-interval status-interval "
        "bandwidth-log latency-log aggrmode debug parse-only",
        _PLACE: "cpumask cpus_allowed cpus_allowed_policy numa_cpu_nodes numa_mem_policy nice prio prioclass priohint "
        "cmdprio cmdprio_class cmdprio_percentage cmdprio_bssplit cgroup cgroup_weight cgroup_nodelete uid gid lockmem "
        "mem iomem_align hugepage-size comm gpu_dev_id sqthread_poll_cpu",
        _HOST: "ioscheduler",
        _PREPARED: "exec_prerun exec_postrun",
        _NO_VERIFY: "do_verify verify_policy verify_interval verify_offset verify_pattern verify_pattern_interval "
        "verify_fatal verify_dump verify_async verify_async_cpus verify_backlog verify_backlog_batch verify_state_load "
        "verify_state_save verify_write_sequence verify_header_seed verifysort verifysort_nr experimental_verify",
        _NO_TRIM: "trim_verify_zero trim_backlog trim_backlog_batch num_range",
        _NO_REPLAY: "read_iolog_chunked replay_no_stall replay_redirect replay_scale replay_align replay_time_scale "
        "replay_skip merge_blktrace_file merge_blktrace_scalars merge_blktrace_iters",
        _NO_ZONES: "zonecapacity read_beyond_wp max_open_zones job_max_open_zones ignore_zone_limits "
        "zone_reset_threshold zone_reset_frequency recover_zbd_write_error write_zone_remainder",
        _NO_FLOW: "flow_id flow_sleep flow_watermark",
        _NO_SEARCH: "latency_window latency_percentile latency_run",
        _NO_HINTS: "write_hint fdp dataplacement plids plid_select dp_scheme",
        _NO_RATE_CHECK: "rate_min rate_iops_min rate_cycle",
        _SUBMIT: "io_submit_mode",
        _WAIT: "userspace_reap rwmixcycle percentage_sequential",
    }.items()
    for name in names.split()
}

_ZONES = "zones would change where the I/O goes, and a guest's disk has none; remove the line"
_POLLS = "a guest's disk has no queues to poll; remove the line"
_ONLY_NEW = "not every fio has this option; remove the line"

_REFUSED: Mapping[str, Refused] = {
    "flow": Refused("the speed of a section would follow that of another one; remove the line"),
    "bs_unaligned": Refused("direct I/O needs aligned blocks; remove the line"),
    "atomic": Refused("not every disk can write atomically; remove the line"),
    "nowait": Refused("an I/O that would wait fails instead; remove the line"),
    "hipri": Refused(_POLLS),
    "hipri_percentage": Refused(_POLLS),
    "cmd_type": Refused("commands of NVMe do not reach a guest's disk; remove the line", off=()),
    "verify": Refused("the reads that verify would be measured as reads of the workload; remove the line"),
    "verify_only": Refused("the section only verifies what an earlier run wrote; remove the section"),
    "trim_percentage": Refused("trims beside reads would make blocks that are not read from the disk; remove the line"),
    "create_only": Refused("the section only creates files, so there is nothing to measure; remove the section"),
    "stats": Refused("fio would not report the section's I/O; remove the line, or the section", off=("1",)),
    "read_iolog": Refused("recorded I/O cannot be measured; write its pattern instead", off=()),
    "profile": Refused("a profile of fio replaces the whole workload; write its pattern instead", off=()),
    "latency_target": Refused("the depth would follow the latency; remove the line, or use [search.NAME]"),
    "zonemode": Refused(_ZONES, off=("none",)),
    "zonesize": Refused(_ZONES),
    "zonerange": Refused(_ZONES),
    "zoneskip": Refused(_ZONES),
    "sprandom": Refused("the section only prepares a disk; remove the section"),
    "spr_num_regions": Refused(_ONLY_NEW),
    "spr_op": Refused(_ONLY_NEW),
    "spr_cs": Refused(_ONLY_NEW),
    "random_sequence_stride": Refused(_ONLY_NEW),
    "thinkcycles": Refused(_ONLY_NEW),
}

OPTIONS: Mapping[str, Option] = {**_USED, **_NOT_USED, **_REFUSED}
"""Every option that a file may be expected to have, by its name without aliases. `include` and STRUCTURAL are
about the structure of a file; `reading.py` reads them."""

ALLOWED: Mapping[str, Check] = {name: option.check for name, option in _USED.items()}
"""The options of the I/O pattern, which fio gets as they are. Each has a check of its value."""

OVERRIDDEN: Mapping[str, str] = {name: option.instead for name, option in _NOT_USED.items()}
"""Options that virt-overhead sets itself, and what applies instead."""

STRUCTURAL = (STONEWALL, WAIT_FOR, STARTDELAY)
"""Options that say when a section runs. Only the delay is listed, because the sections do not keep it exactly."""


def check_option(name: str, value: str | None) -> None:
    """Raise ValueError if a file must not have this option, or not with this value. `name` is not an alias."""
    option = OPTIONS.get(name)
    if name == STONEWALL:
        if value is not None:
            _FLAG(value)
    elif name == STARTDELAY:
        parse_fio_seconds((value or "0").partition("-")[0])
    elif name == WAIT_FOR:
        if not value:
            raise ValueError("needs the name of a section")
    elif option is None:
        known = [*OPTIONS, *ALIASES, *STRUCTURAL]
        raise ValueError(f"is not an option of fio for files and disks; remove the line{near(name, known)}")
    elif isinstance(option, Refused):
        if value is None or value not in option.off:
            raise ValueError(option.why)
    elif isinstance(option, Used):
        _check_used(option, value)


def _check_used(option: Used, value: str | None) -> None:
    if value is None and option.is_flag:
        return
    if not value:
        raise ValueError("needs a value")
    if "$" in value or "`" in value:
        raise ValueError("fio would replace $ and ` by values of the machine; write the value itself")
    if not value.isprintable():
        raise ValueError("allowed: printable characters")
    option.check(value)


def find_replacement(name: str, engine: str) -> str | None:
    """What applies instead of an option in a section with this engine; None if nothing is lost."""
    option = OPTIONS.get(name)
    if isinstance(option, NotUsed):
        return option.instead
    if isinstance(option, Used) and option.of not in (None, engine):
        return f"nothing: it is an option of {option.of}"
    if name == STARTDELAY:
        return "sections start together, or one after the other at stonewall"
    return None


_VARIABLE = re.compile(r"\$\{(?P<name>[^}]*)\}")


def find_variables(value: str) -> Iterator[str]:
    """The environment variables that fio would replace in the value: NUMJOBS of `${NUMJOBS}`."""
    for match in _VARIABLE.finditer(value):
        yield match["name"]


def replace_variables(value: str, environment: Mapping[str, str]) -> str:
    """The value with its environment variables replaced. Raises ValueError for one that is not set."""
    for name in find_variables(value):
        if name not in environment:
            raise ValueError(f"the environment variable {name} is not set; set it, or write the value itself")
    return _VARIABLE.sub(lambda match: environment[match["name"]], value)
