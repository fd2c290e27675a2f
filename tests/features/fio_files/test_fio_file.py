"""A user's own fio file as workloads: what fio gets, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.features.fio_files.options import ALIASES, ENGINES, OPTIONS, STRUCTURAL
from harness.features.fio_files.reading import Line, make_workloads, read_fio_files
from harness.features.steady.measuring import choose_job
from harness.measure.fio import Target, TimedSection, job_file
from harness.measure.platform import ScheduledFio, Start
from harness.model.job import FromFile, Workload
from harness.model.layout import Zvol
from harness.model.workloads import parse_workloads
from tests.features.fio_files.fio_files import DATABASE, job_of, read, read_in
from tests.unit.test_fio import options

KIB = 1024
TARGET = Target("/dev/disk/by-id/x", offset=4 << 20, size=24 << 20, direct=True)
GOLDEN = """\
[my-database-reader-and-1]
new_group
ioengine=libaio
rw=randread
bssplit=4k/60:16k/40
iodepth=8
numjobs=2
filename=/dev/disk/by-id/x
offset=4194304
size=25165824
direct=1
invalidate=1
runtime=1000ms
startdelay=500ms
exec_prerun=exec sh wait_until 100000

[my-database-reader-and-1+1]
ioengine=libaio
rw=write
bs=4k
fdatasync=1
thinktime=1000
filename=/dev/disk/by-id/x
offset=4194304
size=25165824
direct=1
invalidate=1
runtime=1000ms
startdelay=500ms
exec_prerun=exec sh wait_until 100000

[my-database-backup]
new_group
ioengine=libaio
rw=read
bs=1m
iodepth=4
filename=/dev/disk/by-id/x
offset=4194304
size=25165824
direct=1
invalidate=1
runtime=1000ms
startdelay=500ms
exec_prerun=exec sh wait_until 100500
"""


def of_file(workload: Workload) -> FromFile:
    assert workload.from_file is not None
    return workload.from_file


def told(workload: Workload, *, block: int = 512) -> list[dict[str, str]]:
    """What fio is told of each section, on a disk with logical blocks of this size."""
    target = Target("/dev/x", 0, 1 << 30, direct=True, block=block)
    found = options(job_file([TimedSection("job", job_of(workload), target)], seed=1))
    return [dict(found[name]) for name in found.sections()[1:]]


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the callers compare the whole message
        read(folder, text)
    return str(error.value).splitlines()


# --- what it means ---


def test_sections_without_stonewall_are_one_job_and_their_parts_start_together() -> None:
    jobs = [job_of(each) for each in read_in(DATABASE.parent, DATABASE.name)]
    pacing = ScheduledFio("/directory", ("fio",), (Start(100.0, 3), Start(100.5, 1)))
    written = job_file([TimedSection(job.id, job, TARGET, 0.5) for job in jobs], seed=7, waits=pacing.waits)
    assert written.partition("\n\n")[2] == GOLDEN


def test_a_job_says_what_its_sections_do_together() -> None:
    both, backup = read_in(DATABASE.parent, DATABASE.name)
    assert (both.name, job_of(both).id) == ("my-database-reader-and-1", "my-database-reader-and-1")
    assert (both.rw, both.bs, both.numjobs, both.iodepths) == ("randrw", 16 * KIB, 3, (8,))
    assert (both.share_of_reads, both.flushes, both.is_saturating, both.headline) == (None, True, False, "iops")
    assert job_of(both).depth == 2 * 8 + 1
    assert (backup.rw, backup.bs, backup.numjobs, backup.headline) == ("read", 1024 * KIB, 1, "bw")
    assert (backup.share_of_reads, backup.flushes, backup.is_saturating) == (1.0, False, True)


def test_what_virt_overhead_sets_itself_is_listed_with_the_value_of_the_file() -> None:
    for workload in read_in(DATABASE.parent, DATABASE.name):
        for section in of_file(workload).sections:
            assert [(each.name, each.value) for each in section.overridden] == [
                ("filesize", "8g"),
                ("size", "8g"),
                ("runtime", "5m"),
                ("time_based", ""),
                ("direct", "1"),
                ("group_reporting", ""),
            ]
            assert all(each.instead for each in section.overridden)


def test_a_later_global_section_is_for_the_sections_after_it(tmp_path: Path) -> None:
    text = "[global]\nrw=write\n[one]\n[global]\nbs=8k\nstonewall\n[two]\n[three]\nbs=16k\nstonewall=0\n"
    one, both = read(tmp_path, text)
    assert [(each["rw"], each.get("bs")) for each in told(one)] == [("write", None)]
    assert [(each["rw"], each.get("bs")) for each in told(both)] == [("write", "8k"), ("write", "16k")]
    assert (one.bs, both.bs) == (4 * KIB, 16 * KIB)


def test_comments_blanks_and_other_names_of_options_are_those_of_fio(tmp_path: Path) -> None:
    text = "; a\n# b\r\n\n  [ a b ] ; c\r\n  readwrite = randread # d\r\nblocksize=8k;e\n"
    text += "\tio_limit=1g\nwait_for_previous\n"
    (workload,) = read(tmp_path, text)
    assert (workload.name, workload.rw, workload.bs) == ("db-a-b", "randread", 8 * KIB)
    assert [each.name for each in of_file(workload).sections[0].overridden] == ["io_size"]


def test_without_an_engine_fio_has_its_own_default_which_waits_for_each_io(tmp_path: Path) -> None:
    (workload,) = read(tmp_path, "[a]\niodepth=32\n")
    assert (told(workload)[0]["ioengine"], told(workload)[0]["iodepth"]) == ("psync", "32")
    assert (workload.iodepths, job_of(workload).depth) == ((1,), 1)


def test_a_job_that_would_measure_the_memory_of_its_guest_has_direct_io(tmp_path: Path) -> None:
    """As in a public guide (eirik-talberg.github.io): its guest was twice as fast as the host."""
    (workload,) = read(tmp_path, "[a]\nioengine=posixaio\nrw=randread\nbs=4k\niodepth=16\nbuffered=1\n")
    assert job_of(workload).buffered is False
    assert [option.name for option in of_file(workload).sections[0].overridden] == ["buffered"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_uses_the_disk_stays(tmp_path: Path, engine: str) -> None:
    (workload,) = read(tmp_path, f"[a]\nioengine={engine}\niodepth=4\n")
    assert told(workload)[0]["ioengine"] == engine
    assert workload.iodepths == ((4,) if engine in ("libaio", "io_uring", "posixaio") else (1,))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("rw=randrw\nrwmixread=70", ("randrw", 0.7, None, "iops")),
        ("rw=readwrite", ("rw", 0.5, None, "bw")),
        ("rw=randrw\nrwmixwrite=20", ("randrw", 0.8, None, "iops")),
        ("rw=randrw\nrwmixread=60\nrwmixwrite=40", ("randrw", 0.6, None, "iops")),
        ("rw=randrw\nrwmixread=60\nrwmixwrite=10", ("randrw", 0.9, None, "iops")),
        ("rw=randrw\nrwmixwrite=10\nrwmixread=60", ("randrw", 0.6, None, "iops")),
        ("rw=randread\nrate_iops=1k\nkb_base=1000", ("randread", None, 1000, "clat_mean")),
        ("rw=randread\nrate_iops=100\nnumjobs=3", ("randread", None, 300, "clat_mean")),
        ("rw=randwrite\nrate_iops=100,50", ("randwrite", None, 50, "clat_mean")),
        ("rw=randrw\nrate_iops=100", ("randrw", 0.5, None, "clat_mean")),
        ("rw=randread\nrate=10m", ("randread", None, None, "clat_mean")),
        ("rw=randread\nthinktime=0", ("randread", None, None, "iops")),
        ("rw=randread\nrate_iops=100\nrate_process=poisson", ("randread", None, 100, "lat_mean")),
        ("rw=write\nfdatasync=1", ("write", None, None, "sync_mean")),
        ("rw=randread:8", ("randread", None, None, "iops")),
    ],
)
def test_a_section_has_the_metric_that_it_is_for(
    tmp_path: Path, own: str, expected: tuple[str, float | None, int | None, str]
) -> None:
    (workload,) = read(tmp_path, f"[a]\n{own}\n")
    assert (workload.rw, workload.read_share, workload.rate, workload.headline) == expected
    assert told(workload)[0].items() >= dict(line.split("=") for line in own.splitlines()).items()


@pytest.mark.parametrize(
    ("own", "sizes", "on_4k"),
    [
        ("bs=512", (512,), "bs=4096"),
        ("bs=1k,64k", (1024, 65536), "bs=4096,64k"),
        ("bsrange=512-16K", (512, 16384), "bsrange=4096-16K"),
        ("bssplit=512/10:6k/20:8kb/70,1k/100", (512, 1024, 6144, 8192), "bssplit=4096/10:8192/20:8kb/70,4096/100"),
        ("bs=4k\nbssplit=8k/", (8192,), "bssplit=8k/"),
        ("bs=4k\nbsrange=8k-16k", (8192, 16384), "bsrange=8k-16k"),
        ("bs=8k,4k,512", (512, 4096, 8192), "bs=8k,4k,4096"),
        ("bs=,8k", (4096, 8192), "bs=,8k"),
        ("ba=512", (4096,), "ba=4096"),
        ("kb_base=1000\nbs=512kib", (524288,), "bs=512kib"),
    ],
)
def test_blocks_that_the_disk_cannot_do_are_rounded_up(
    tmp_path: Path, own: str, sizes: tuple[int, ...], on_4k: str
) -> None:
    (workload,) = read(tmp_path, f"[a]\n{own}\n")
    assert (workload.block_sizes, workload.bs) == (sizes, max(sizes))
    name, _, value = on_4k.partition("=")
    assert told(workload, block=4096)[0][name] == value
    assert told(workload)[0][name] == own.splitlines()[-1].partition("=")[2]


def test_the_smallest_block_decides_how_much_a_layout_may_amplify(tmp_path: Path) -> None:
    (workload,) = read(tmp_path, "[a]\nbssplit=4k/90:64k/10\n")
    assert Zvol(16 * KIB).amplification(job_of(workload)).most_read == 4


def test_a_disk_is_conditioned_without_the_pauses_and_rates_of_a_file(tmp_path: Path) -> None:
    (workload,) = read(tmp_path, "[a]\nrw=randwrite\nbs=8k\nrate_iops=10\nthinktime=1s\n")
    job = choose_job([job_of(workload)])
    (told_fio,) = [options(job_file([TimedSection("job", job, TARGET)], seed=1))["job"]]
    assert (told_fio["rw"], told_fio["bs"]) == ("randwrite", "8192")
    assert not told_fio.keys() & {"rate_iops", "thinktime"}


@pytest.mark.parametrize(
    ("own", "on_512", "on_4k"),
    [("bs=2300", "2560", "4096"), ("kb_base=1000\nbs=4k", "4096", "4096")],
)
def test_a_block_that_no_disk_can_do_is_rounded_up_to_its_blocks(
    tmp_path: Path, own: str, on_512: str, on_4k: str
) -> None:
    (workload,) = read(tmp_path, f"[a]\nrw=write\n{own}\n")
    assert (told(workload)[0]["bs"], told(workload, block=4096)[0]["bs"]) == (on_512, on_4k)


# --- what is accepted without being used ---

NO_EFFECT = """\
filename=/dev/sdb:/dev/sdc
directory=/mnt/data
size=100%
runtime=1m
time_based
ramp_time=5s
loops=3
steadystate=iops:10%
ss_dur=10
direct=0
buffered=1
random_generator=lfsr
norandommap
refill_buffers
zero_buffers
buffer_compress_percentage=50
dedupe_percentage=30
fallocate=none
overwrite=1
unlink=1
create_serialize=0
end_fsync=1
thread
group_reporting
cpus_allowed=0-3
numa_mem_policy=bind:0
nice=-5
prioclass=1
mem=mmaphuge
hugepage-size=2m
ioscheduler=none
write_bw_log=run
log_avg_msec=500
percentile_list=50:99
disable_bw=1
output-format=json
exec_prerun=touch /ran
continue_on_error=all
max_latency=1s
rate_min=1m
allow_mounted_write=1
io_submit_mode=offload
write_hint=short
verify_backlog=8
"""
SWITCHED_OFF = "verify=0\nzonemode=none\nlatency_target=0\nflow=0\natomic=0\nstats=1\ncreate_only=0\nhipri=0\n"


def test_options_without_effect_are_listed_and_never_reach_fio(tmp_path: Path) -> None:
    (workload,) = read(tmp_path, f"[a]\nrw=randread\n{NO_EFFECT}")
    (section,) = of_file(workload).sections
    lines = [line.partition("=") for line in NO_EFFECT.splitlines()]
    aliases = {"disable_bw": "disable_bw_measurement", "ss_dur": "steadystate_duration"}
    listed = [(aliases.get(name, name), value) for name, _, value in lines]
    assert [(each.name, each.value) for each in section.overridden] == listed
    assert all(each.instead for each in section.overridden)
    assert section.text == "ioengine=psync rw=randread"
    assert "touch" not in job_file([TimedSection("job", job_of(workload), TARGET)], seed=1)


def test_a_value_that_switches_an_option_off_is_accepted(tmp_path: Path) -> None:
    (workload,) = read(tmp_path, f"[a]\nrw=randread\n{SWITCHED_OFF}")
    (section,) = of_file(workload).sections
    assert (section.text, section.overridden) == ("ioengine=psync rw=randread", ())


def test_an_option_of_another_engine_is_listed(tmp_path: Path) -> None:
    text = "[global]\nfixedbufs\n[a]\nioengine=io_uring\n[b]\nioengine=libaio\nstonewall\n"
    own, other = read(tmp_path, text)
    assert told(own)[0]["fixedbufs"] == "1"
    assert "fixedbufs" not in told(other)[0]
    assert [each.name for each in of_file(other).sections[0].overridden] == ["fixedbufs"]


@pytest.mark.parametrize("engine", ["windowsaio", "linuxaio"])
def test_another_name_of_an_engine_is_that_of_linux_for_the_same_io(tmp_path: Path, engine: str) -> None:
    (workload,) = read(tmp_path, f"[a]\nioengine={engine}\niodepth=8\n")
    (section,) = of_file(workload).sections
    assert (told(workload)[0]["ioengine"], section.iodepth) == ("libaio", 8)
    assert [(each.name, each.value) for each in section.overridden] == [("ioengine", engine)]


def test_every_option_of_the_installed_fio_is_decided() -> None:
    fio = shutil.which("fio")
    if fio is None:
        pytest.skip("needs fio")
    shown = subprocess.run([fio, "--cmdhelp=all"], capture_output=True, text=True, check=True).stdout
    names = {line.partition(":")[0].strip() for line in shown.splitlines() if ":" in line and line[0] != "\t"}
    assert len(names) > 200
    assert {ALIASES.get(name, name) for name in names} - OPTIONS.keys() <= set(STRUCTURAL)


def test_every_alias_is_of_an_option_that_is_decided() -> None:
    assert set(ALIASES.values()) <= OPTIONS.keys() | set(STRUCTURAL)
    assert not ALIASES.keys() & OPTIONS.keys()


# --- when sections run ---


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("[a]\n[b]\nwait_for=a\n[c]\nwait_for=a\n", [["a"], ["b", "c"]]),
        ("[a]\nruntime=30\n[b]\nstartdelay=35\nruntime=30\n[c]\nstart_delay=70s\n", [["a"], ["b"], ["c"]]),
        ("[a]\nruntime=30\n[b]\nstartdelay=5\nruntime=30\n", [["a", "b"]]),
        ("[a]\n[b]\nstartdelay=5\n", [["a", "b"]]),
        ("[global_all]\nbs=8k\nstonewall=1\n[a]\n[b]\n", [["a"], ["b"]]),
    ],
)
def test_sections_that_wait_for_others_are_the_next_job(tmp_path: Path, text: str, jobs: list[list[str]]) -> None:
    found = [[section.name for section in of_file(workload).sections] for workload in read(tmp_path, text)]
    assert found == jobs


# --- names ---


def test_a_long_name_is_shortened_the_same_way_each_time_and_differs_from_others(tmp_path: Path) -> None:
    titles = [f"random_read_direct_io_small_file_{number}" for number in range(30)]
    text = "".join(f"[{title}]\nstonewall\n" for title in titles)
    names = [workload.name for workload in read(tmp_path, text, "rand_read_direct_small.fio")]
    assert len(set(names)) == len(titles)
    assert all(len(name) <= 40 and name.startswith("rand-r") for name in names)
    (alone,) = read(tmp_path, f"[{titles[7]}]\n", "rand_read_direct_small.fio")
    assert alone.name == names[7]


def test_a_long_name_keeps_that_of_the_section() -> None:
    text = [Line("rand_read_direct_small_files_on_ssd.fio", 1, "[oltp-reader]")]
    (workload,) = make_workloads("rand_read_direct_small_files_on_ssd.fio", text)
    assert workload.name.startswith("rand-read-direct-smal-oltp-reader-")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[Read 1]\n[read-1]\nstonewall\n[read 1]\nstonewall\n", ["db-read-1", "db-read-1-2", "db-read-1-3"]),
        ("[!!]\n[!!]\nstonewall\n", ["db-line-1", "db-line-2"]),
        ("[\u8bfb]\n", ["db-line-1"]),
    ],
)
def test_sections_with_equal_or_no_plain_names_have_names_of_their_own(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    assert [workload.name for workload in read(tmp_path, text)] == names


@pytest.mark.parametrize("name", ["w.fio", "w.job", "w.ini", "w.jobfile", "below/w"])
def test_a_file_may_have_any_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / "below").mkdir()
    (workload,) = read(tmp_path, "[a]\n", name)
    assert workload.name in ("w-a", "below-w-a")
    assert parse_workloads(name, {name: (workload,)}) == (workload,)


def test_letters_of_another_encoding_in_a_comment_are_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "db.fio").write_bytes(b"; fichier cr\xe9\xe9\n[a]\nrw=randread\n")
    (workload,) = read_in(tmp_path, "db.fio")
    assert workload.name == "db-a"


# --- environment variables ---


def test_variables_of_the_environment_are_replaced_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTH", "16")
    monkeypatch.setenv("SECRET", "hidden")
    text = "[a]\nioengine=libaio\niodepth=${DEPTH}\ndirectory=/mnt/${SECRET}\n"
    (workload,) = read(tmp_path, text)
    assert workload.iodepths == (16,)
    (file,) = read_fio_files(tmp_path, ["db.fio"]).read
    assert dict(file.texts) == {"db.fio": text, "environment variables": "DEPTH=16\n"}
    monkeypatch.setenv("DEPTH", "8")
    (later,) = read_fio_files(tmp_path, ["db.fio"]).read
    assert later.sha256 != file.sha256


# --- what is refused ---


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "ioengine=null",
            "ioengine = null: this engine is not one that reads and writes the disk under test; allowed: ",
        ),
        (
            "ioengine=mmap",
            "ioengine = mmap: this engine is not one that reads and writes the disk under test; allowed: ",
        ),
        ("ioengine=libiao", '(did you mean "libaio"?)'),
        ("rw=random", "rw = random: no such pattern; allowed: read, "),
        (
            "iodpeth=4",
            'iodpeth = 4: is not an option of fio for files and disks; remove the line (did you mean "iodepth"?)',
        ),
        ("verify=crc32c", "verify = crc32c: the reads that verify would be measured as reads of the workload; remove"),
        ("verify_only", "verify_only: the section only verifies what an earlier run wrote; remove the section"),
        ("create_only=1", "create_only = 1: the section only creates files, so there is nothing to measure"),
        ("stats=0", "stats = 0: fio would not report the section's I/O"),
        ("latency_target=10ms", "latency_target = 10ms: the depth would follow the latency; remove the line, or use "),
        ("zonemode=strided", "zonemode = strided: zones would change where the I/O goes"),
        ("zoneskip=1m", "zoneskip = 1m: zones would change where the I/O goes"),
        ("read_iolog=trace", "read_iolog = trace: recorded I/O cannot be measured; write its pattern instead"),
        ("profile=tiobench", "profile = tiobench: a profile of fio replaces the whole workload"),
        ("trim_percentage=10", "trim_percentage = 10: trims beside reads would make blocks"),
        ("flow=8", "flow = 8: the speed of a section would follow that of another one"),
        ("hipri", "hipri: a guest's disk has no queues to poll"),
        ("rw=read:-8k", "rw = read:-8k: backwards patterns would leave the arm's region"),
        ("random_distribution=zoned_abs:60/1g", "zones of a fixed size do not fit every region; allowed: zoned"),
        ("random_distribution=zipf:x", "random_distribution = zipf:x: allowed: random, zipf"),
        ("thinktime=soon", "thinktime = soon: allowed: a number with a unit, for example 100us or 5s"),
        ("kb_base=1001", "kb_base = 1001: allowed: 1024, 1000"),
        ("sync=yes", "sync = yes: allowed: none, 0, sync, 1, dsync"),
        ("bs=4kq", 'bs = 4kq: "4kq" is not a size; allowed: for example 4096 or 4k (k is 1024)'),
        ("bs=32m", 'bs = 32m: "32m" is not a block size; allowed: 1 byte to 16m'),
        ("bs=4k,4k,4k,4k", "bs = 4k,4k,4k,4k: not block sizes of reads and writes; allowed: for example 4k, or 4k,64k"),
        ("bsrange=4k", "bsrange = 4k: not block sizes of reads and writes; allowed: for example 4k-64k"),
        ("bssplit=4k/50:", "bssplit = 4k/50:: not block sizes of reads and writes; allowed: for example 4k/60:64k/40"),
        ("iodepth=0", "iodepth = 0: allowed: a whole number, 1 to 1024"),
        ("numjobs=65", "numjobs = 65: allowed: a whole number, 1 to 64"),
        ("rwmixread=101", "rwmixread = 101: allowed: a whole number, 0 to 100"),
        ("rate_iops=fast", 'rate_iops = fast: "fast" is not a size'),
        ("stonewall=yes", "stonewall = yes: allowed: a whole number, 0 to 1"),
        ("iodepth", "iodepth: needs a value"),
        ("bs=", "bs = : needs a value"),
        ("rate=${NO_SUCH}", "rate = ${NO_SUCH}: the environment variable NO_SUCH is not set; set it, or write"),
        (
            "numjobs=$ncpus",
            "numjobs = $ncpus: fio would replace $ and ` by values of the machine; write the value itself",
        ),
        ("thinktime=1\x1b[2J", "allowed: printable characters"),
    ],
)
def test_an_option_that_a_file_must_not_have_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    (found,) = problems(tmp_path, f"[global]\nsize=1g\n[reader]\n{line}\n")
    assert found.startswith("db.fio, line 4: [reader] ")
    assert message in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "db.fio: has no section; add for example [reader] and its options"),
        ("[global]\nrw=read\n", "db.fio: has no section; add for example [reader] and its options"),
        ("[a\nrw=read\n[b]\n", "db.fio, line 1: [a: not a section; allowed: a name in brackets, [reader]"),
        (
            "[a]\nnumjobs=40\n[b]\nnumjobs=40\n",
            "line 1: [a] numjobs: 80 processes would run at the same time; allowed: ",
        ),
        (
            "[a]\nwait_for=c\n[b]\n[c]\nwait_for=a\n",
            "db.fio, line 4: [c] wait_for = a: is not the only section that runs before this one; use stonewall",
        ),
        ("include no.fio\n[a]\n", "db.fio, line 1: include no.fio: no such file; allowed: db.fio"),
        ("[a]\ninclude ../x.fio\n", "db.fio, line 2: include ../x.fio: allowed: a file in the scenario's folder"),
        ("[a]\ninclude /etc/hosts\n", "db.fio, line 2: include /etc/hosts: allowed: a file in the scenario's folder"),
        ("[a]\ninclude db.fio\n", "included files have no sections; move it to db.fio"),
    ],
)
def test_a_file_that_cannot_be_measured_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert any(message in problem for problem in problems(tmp_path, text))


def test_an_option_before_the_first_section_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "rw=read\n[a]\n")
    assert found == "db.fio, line 1: rw=read: is before the first section; write [global] above it"


def test_every_problem_of_a_file_is_listed_and_those_of_an_included_file_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "disk.inc").write_text("bs=4k\ninclude more.inc\n")
    (tmp_path / "parts" / "more.inc").write_text("profile=tiobench\n")
    found = problems(tmp_path, "[a]\nrw=no\ninclude parts/disk.inc\nioengine=null\n")
    assert [each.partition(": ")[0] for each in found] == [
        "db.fio, line 2",
        "parts/more.inc, line 1",
        "db.fio, line 4",
    ]
    assert "[a] profile = tiobench: a profile of fio replaces the whole workload" in found[1]


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.inc").write_text("include two.inc\n")
    (tmp_path / "two.inc").write_text("include one.inc\n")
    (found,) = problems(tmp_path, "[a]\ninclude one.inc\n")
    assert "allowed: 50, and no file includes itself" in found


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (tmp_path / "secret").write_text("rw=read\n")
    (folder / "common.inc").symlink_to(tmp_path / "secret")
    (found,) = problems(folder, "[a]\ninclude common.inc\n")
    assert found == ("db.fio, line 2: include common.inc: leads out of the scenario's folder; copy the file into it")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[\0a\0]\0", "not a text in UTF-8; save the file as UTF-8"),
        (b";" * (256 * 1024 + 1), "is too large; allowed: at most 256 KiB"),
    ],
)
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "db.fio").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_in(tmp_path, "db.fio")


def test_the_digest_of_a_file_changes_with_that_of_an_included_one(tmp_path: Path) -> None:
    (tmp_path / "db.fio").write_text("[a]\ninclude common.inc\n")
    digests = set()
    for text in ("rw=read\n", "rw=write\n"):
        (tmp_path / "common.inc").write_text(text)
        (file,) = read_fio_files(tmp_path, ["db.fio"]).read
        assert dict(file.texts) == {"db.fio": "[a]\ninclude common.inc\n", "common.inc": text}
        digests.add(file.sha256)
    assert len(digests) == 2
