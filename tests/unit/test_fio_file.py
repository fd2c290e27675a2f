"""A user's own fio file as workloads: what fio gets, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measure.conditioning import conditioning_job
from harness.measure.fio import Section, Target, job_file
from harness.measure.pacing import Pacing, Start
from harness.model.fio_section import FromFile
from harness.model.fio_values import ENGINES
from harness.model.job import Workload
from harness.model.layout import Zvol
from harness.scenario.fio_files import read_fio_files
from tests.unit.fio_files import DATABASE, job_of, read, read_in
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
exec_prerun=exec sh wait_until 10000

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
exec_prerun=exec sh wait_until 10000

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
exec_prerun=exec sh wait_until 10050
"""


def of_file(workload: Workload) -> FromFile:
    assert workload.from_file is not None
    return workload.from_file


def told(workload: Workload, *, block: int = 512) -> list[dict[str, str]]:
    """What fio is told of each section, on a disk with logical blocks of this size."""
    target = Target("/dev/x", 0, 1 << 30, direct=True, block=block)
    found = options(job_file([Section("job", job_of(workload), target)], seed=1))
    return [dict(found[name]) for name in found.sections()[1:]]


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the callers compare the whole message
        read(folder, text)
    return str(error.value).splitlines()


# --- what it means ---


def test_sections_without_stonewall_are_one_job_and_their_parts_start_together() -> None:
    jobs = [job_of(each) for each in read_in(DATABASE.parent, DATABASE.name)]
    pacing = Pacing("/directory", ("fio",), (Start(100.0, 3), Start(100.5, 1)))
    written = job_file([Section(job.id, job, TARGET, 0.5) for job in jobs], seed=7, waits=pacing.waits)
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


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_uses_the_disk_stays(tmp_path: Path, engine: str) -> None:
    (workload,) = read(tmp_path, f"[a]\nioengine={engine}\niodepth=4\n")
    assert told(workload)[0]["ioengine"] == engine
    assert workload.iodepths == ((4,) if engine in ("libaio", "io_uring") else (1,))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("rw=randrw\nrwmixread=70", ("randrw", 0.7, None, "iops")),
        ("rw=readwrite", ("rw", 0.5, None, "bw")),
        ("rw=randrw\nrwmixwrite=20", ("randrw", 0.8, None, "iops")),
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
    job = conditioning_job([job_of(workload)])
    (told_fio,) = [options(job_file([Section("job", job, TARGET)], seed=1))["job"]]
    assert (told_fio["rw"], told_fio["bs"]) == ("randwrite", "8192")
    assert not told_fio.keys() & {"rate_iops", "thinktime"}


# --- what is refused ---


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("filename=/dev/sda", "filename = /dev/sda: the target is the disk under test; remove the line"),
        ("directory=/tmp", "directory = /tmp: the target is the disk under test; remove the line"),
        (
            "ioengine=null",
            "ioengine = null: this engine is not one that reads and writes the disk under test; allowed: ",
        ),
        (
            "ioengine=mmap",
            "ioengine = mmap: this engine is not one that reads and writes the disk under test; allowed: ",
        ),
        ("ioengine=libiao", '(did you mean "libaio"?)'),
        ("rw=randtrim", "rw = randtrim: no such pattern; trims are not measured; allowed: read, "),
        ("rw=random", "rw = random: no such pattern; allowed: read, "),
        ("zero_buffers", "zero_buffers: a layer could compress or drop such data; remove the line"),
        ("buffer_compress_percentage=50", "= 50: a layer could compress or drop such data; remove the line"),
        ("exec_prerun=rm x", "exec_prerun = rm x: a workload must not run commands; remove the line"),
        ("start_delay=5", "start_delay = 5: sections start together or one after the other; remove the line, or "),
        ("io_submit_mode=offload", "fio sometimes does not end with it; remove the line"),
        ("allow_mounted_write=1", "virt-overhead never writes to a mounted disk; remove the line"),
        ("verify=crc32c", "verify = crc32c: is not an option of a workload; remove the line; allowed: rw, "),
        ("iodpeth=4", '(did you mean "iodepth"?)'),
        ("bs=4kq", 'bs = 4kq: "4kq" is not a size; allowed: for example 4096 or 4k (k is 1024)'),
        ("bs=1000", 'bs = 1000: "1000" is not a block size; allowed: multiples of 512 bytes up to 16m'),
        ("bs=32m", 'bs = 32m: "32m" is not a block size; allowed: multiples of 512 bytes up to 16m'),
        ("bs=4k,4k,4k", "bs = 4k,4k,4k: not block sizes of reads and writes; allowed: for example 4k, or 4k,64k"),
        ("bsrange=4k", "bsrange = 4k: not block sizes of reads and writes; allowed: for example 4k-64k"),
        ("bssplit=4k/50:", "bssplit = 4k/50:: not block sizes of reads and writes; allowed: for example 4k/60:64k/40"),
        ("iodepth=0", "iodepth = 0: allowed: a whole number, 1 to 1024"),
        ("numjobs=65", "numjobs = 65: allowed: a whole number, 1 to 64"),
        ("rwmixread=101", "rwmixread = 101: allowed: a whole number, 0 to 100"),
        ("rate_iops=fast", 'rate_iops = fast: "fast" is not a size'),
        ("stonewall=yes", "stonewall = yes: allowed: a whole number, 0 to 1"),
        ("iodepth", "iodepth: needs a value"),
        ("bs=", "bs = : needs a value"),
        ("rate=${RATE}", "rate = ${RATE}: fio would replace $ and ` by values of the machine; write the value itself"),
        ("size=$mb_memory", "size = $mb_memory: fio would replace $ and `"),
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
        ("[a]\nbs=4k\nbsrange=4k-8k\n", "db.fio, line 1: [a] bs: conflicts with bsrange; remove one of them"),
        ("[a]\nrwmixread=1\nrwmixwrite=9\n", "db.fio, line 1: [a] rwmixread: conflicts with rwmixwrite; remove one"),
        (
            "[a]\nnumjobs=40\n[b]\nnumjobs=40\n",
            "line 1: [a] numjobs: 80 processes would run at the same time; allowed: ",
        ),
        ("[!!]\n", "db.fio, line 1: [!!]: the names of file and section need a letter or digit each"),
        ("[Read 1]\n[read-1]\nstonewall\n", 'db.fio: two jobs have the name "db-read-1"; rename one of their sections'),
        (f"[{'x' * 38}]\n", f'"db-{"x" * 38}" has 41 characters; allowed: at most 40, so shorten the name of the'),
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
    (tmp_path / "parts" / "more.inc").write_text("filename=/dev/sda\n")
    found = problems(tmp_path, "[a]\nrw=no\ninclude parts/disk.inc\nioengine=null\n")
    assert [each.partition(": ")[0] for each in found] == [
        "db.fio, line 2",
        "parts/more.inc, line 1",
        "db.fio, line 4",
    ]
    assert found[1].endswith("[a] filename = /dev/sda: the target is the disk under test; remove the line")


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
    [(b"[a]\n\xff\n", "not valid UTF-8"), (b";" * (256 * 1024 + 1), "is too large; allowed: at most 256 KiB")],
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
