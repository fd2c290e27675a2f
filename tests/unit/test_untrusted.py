"""What hosts, guests and QEMU print may be anything: every reader gives a value or an error of ours, nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.errors import GuestError, HarnessError, HostError
from harness.features.doctor.settings import SettingsRecord
from harness.features.embedded.lab_host import LabMachineState
from harness.features.io_costs.cycles import CycleSeries, count_cycles, probe_cycle_counting
from harness.features.proxmox.guest import find_drive
from harness.features.proxmox.guest import read_process as read_pve_process
from harness.features.vfio.passing import find_pci_disk
from harness.guest.booting import LinuxSystem
from harness.guest.libvirt.connection import answer_of
from harness.guest.libvirt.effective import read_process
from harness.guest.protocol import block_devices
from harness.lab.counters import CounterFiles, Sample, find_threads, parse_samples, read_samples
from harness.lab.facts import Acceleration, HostFacts, load_or_probe, read_answers, read_facts
from harness.lab.transport.base import Completed, Runner
from harness.lab.transport.local import LocalRunner
from harness.untrusted import JSON_BYTES, JSON_DEPTH, count, finite, parse_json
from tests.features.vfio.test_pci import SEEN
from tests.unit.test_cycles import PRINTED as CYCLES
from tests.unit.test_cycles import SERIES
from tests.unit.test_effective import COMMAND_LINE
from tests.unit.test_vm_threads import PRINTED as THREADS

DEEP = "[" * 100_000
PERF = HostFacts({"perf": "perf version 6.1"})
SERIAL = "voh-1"


class Printing:
    """This machine, on which every command prints the same file."""

    def __init__(self, file: Path) -> None:
        self.name = "host lab"
        self._file = file
        self._runner = LocalRunner("host lab")

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        del argv, stdin
        return self._runner.run(["cat", str(self._file)], deadline=deadline, check=check)

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        self._runner.put(source, target, deadline=deadline)

    def close(self) -> None:
        self._runner.close()


def counted(runner: Runner) -> list[Sample]:
    files = CounterFiles(("vda",))
    return parse_samples(read_samples(runner, files, [10.4], deadline=30), files, runner.name, expected=1)


def intervals(runner: Runner) -> CycleSeries | None:
    found = count_cycles(runner, 1.0)
    return found if found.intervals else None


Reader = Callable[[Runner], object]

READERS: dict[str, tuple[Reader, str]] = {
    "facts": (read_facts, "hostname=lab\nkernel=6.12\ncpus=4\nmemory_bytes=4096\nswap_bytes=0\nuser=0\n"),
    "counters": (
        counted,
        (
            "@ 1040.5 1041.0\n/sys/class/block/vda/stat: 1 0 8 1 2 0 16 1 0 3 4 0 0 0 0 0 0\n"
            "/proc/stat:cpu  1 2 3 4 5 6 7 8 9 10\n"
            "/proc/stat:cpu0 1 2 3 4 5 6 7 8 9 10\n/proc/stat:ctxt 99\n/proc/uptime:10.5 20.1\n"
        ),
    ),
    "cycles": (lambda runner: probe_cycle_counting(runner, PERF), CYCLES),
    "intervals of cycles": (intervals, SERIES),
    "threads": (lambda runner: find_threads(runner, "/run/pid"), "\n".join(THREADS) + "\n"),
    "command line": (lambda runner: read_process(runner, "voh-run").aio("libvirt-4-format"), COMMAND_LINE),
    "PVE's command line": (
        lambda runner: find_drive(read_pve_process(runner, 9000), "scsi0"),
        (
            'native\t1\nio_uring\t0\nargument\t-blockdev\nargument\t{"driver":"throttle","node-name":"drive-scsi0",'
            '"file":{"driver":"raw","file":{"driver":"host_device","filename":"/dev/x","aio":"native",'
            '"cache":{"direct":true,"no-flush":false}}}}\n'
            "argument\t-device\nargument\tvirtio-scsi-pci,id=virtioscsi0\n"
            "argument\t-device\nargument\tscsi-hd,bus=virtioscsi0.0,drive=drive-scsi0,id=scsi0\n"
        ),
    ),
    "disks of a guest": (
        lambda runner: block_devices(LinuxSystem(runner), [SERIAL], "lab"),
        f"vda\t{SERIAL}\tnone\t1\twrite back\t512\t512\t256\t0\t0\t1\t256\tvirtio_blk\tvirtio-pci\t\n",
    ),
    "PCI device": (lambda runner: find_pci_disk(runner, "/dev/x"), SEEN),
}


def printing(tmp_path: Path, output: bytes) -> Printing:
    (tmp_path / "output").write_bytes(output)
    return Printing(tmp_path / "output")


@pytest.mark.parametrize("name", READERS)
def test_what_a_machine_really_prints_is_read(name: str, tmp_path: Path) -> None:
    reader, good = READERS[name]
    assert reader(printing(tmp_path, good.encode())) is not None


@pytest.mark.parametrize("name", READERS)
def test_output_cut_off_or_changed_anywhere_is_read_or_an_error_of_ours(name: str, tmp_path: Path) -> None:
    reader, good = READERS[name]
    chance = random.Random(name)
    data = good.encode()
    changed = [data[: chance.randrange(len(data))] for _ in range(20)]
    for _ in range(80):
        at = chance.randrange(len(data))
        piece = chance.choice([b"\0", b"\xff\xfe", b"\n", b"\t", b"", b"-1", b"nan", b"9" * 5000, DEEP.encode(), b"{}"])
        changed.append(data[:at] + piece + data[at + chance.randrange(4) :])
    for output in changed:
        try:
            reader(printing(tmp_path, output))
        except HarnessError as error:
            assert len(error.message) < 8100  # noqa: PT017 - it need not be raised


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("output", [b"", b"\0" * 4096, b"\xff" * 4096, DEEP.encode(), b"null\n", b"a\tb\tc\n=\n:\n"])
def test_output_of_another_kind_is_an_error_of_ours(name: str, output: bytes, tmp_path: Path) -> None:
    reader, _ = READERS[name]
    try:
        found = reader(printing(tmp_path, output))
    except HarnessError as error:
        found = error
    # No PCI device behind a disk is an answer, and so is a perf that counts nothing.
    assert isinstance(found, HarnessError) or name in ("PCI device", "cycles", "intervals of cycles")


def test_a_number_that_is_none_is_named_with_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r'host lab: cpus is "many", which is not a number'):
        read_facts(printing(tmp_path, b"kernel=6.12\ncpus=many\n"))


def test_a_block_device_that_is_its_own_layer_ends(tmp_path: Path) -> None:
    layers = [{"node-name": "a", "file": "b"}, {"node-name": "b", "file": "a"}]
    layers = [{"node-name": "a", "file": "b"}, {"node-name": "b", "file": "a"}]
    loop = "".join(f"argument\t-blockdev\nargument\t{json.dumps(layer)}\n" for layer in layers)
    process = read_process(printing(tmp_path, loop.encode()), "voh-run")
    with pytest.raises(GuestError, match="is its own layer"):
        process.aio("a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"return": ' + DEEP, "host lab: QEMU: its answer to query-stats cannot be read"),
        ('{"return": [', "host lab: QEMU: its answer to query-stats cannot be read"),
        ("[1]", "refused query-stats|cannot be read"),
        ("7", "cannot be read"),
        ('{"error": "no"}', "cannot be read"),
        ('{"error": {"desc": "no such command"}}', "host lab: QEMU refused query-stats: no such command"),
        ("\0", "cannot be read"),
        ('{"return": "' + "x" * (JSON_BYTES) + '"}', "the limit is 16 MiB"),
    ],
)
def test_an_answer_of_qemu_that_cannot_be_read_is_a_guest_error(text: str, said: str) -> None:
    with pytest.raises(GuestError, match=said):
        answer_of(text, "query-stats", "host lab: QEMU")


# --- records on hosts and in the user's directories ---


@pytest.mark.parametrize(
    "text",
    [DEEP, "", "[]", "null", "{}", '{"machine": 1, "pid": [], "started": {}, "before": [["a", "b"]]}', '{"before": 7}'],
)
def test_a_record_of_settings_that_cannot_be_read_is_none(text: str) -> None:
    assert SettingsRecord.parse(text) is None


@pytest.mark.parametrize("text", [DEEP, "", "[]", '{"key": 1}', '{"key": {"accel": "warp", "why": "?"}}', "\0", "NaN"])
def test_with_a_damaged_file_of_probes_the_probe_runs_again(text: str, tmp_path: Path) -> None:
    file = tmp_path / "probes.json"
    file.write_text(text)
    answer = Acceleration("tcg", "there is no /dev/kvm")
    assert load_or_probe(file, "key", lambda: answer) == answer
    assert read_answers(file)["key"] == answer


def test_a_guest_that_booted_under_kvm_is_not_booted_again(tmp_path: Path) -> None:
    file = tmp_path / "probes.json"
    answers = [Acceleration("kvm", "the guest image booted"), Acceleration("tcg", "must not be asked")]
    assert load_or_probe(file, "key", lambda: answers[0]) == answers[0]
    assert load_or_probe(file, "key", lambda: answers[1]) == answers[0]


def test_a_host_whose_kvm_did_not_work_is_probed_again_and_its_newest_result_comes_last(tmp_path: Path) -> None:
    file = tmp_path / "probes.json"
    failed, other = Acceleration("tcg", "there is no /dev/kvm"), Acceleration("kvm", "of another image")
    repaired = Acceleration("kvm", "the guest image booted")
    assert load_or_probe(file, "node1, guest a", lambda: failed) == failed
    assert read_answers(file)["node1, guest a"] == failed
    assert load_or_probe(file, "node1, guest b", lambda: other) == other
    assert load_or_probe(file, "node1, guest a", lambda: repaired) == repaired
    assert list(read_answers(file).items()) == [("node1, guest b", other), ("node1, guest a", repaired)]


@pytest.mark.parametrize("text", [DEEP, "", "[]", '{"pid": "1"}', "\0"])
def test_a_damaged_record_is_not_a_lab_host(text: str, tmp_path: Path) -> None:
    state = LabMachineState(tmp_path)
    state.record.write_text(text)
    assert state.running() is None


# --- the limits themselves ---


def test_json_as_deep_as_the_limit_is_read_and_no_deeper() -> None:
    assert parse_json("[" * JSON_DEPTH + "]" * JSON_DEPTH, "it")
    with pytest.raises(HostError, match=f"it cannot be read: it is nested more than {JSON_DEPTH} levels deep"):
        parse_json("[" * (JSON_DEPTH + 1) + "]" * (JSON_DEPTH + 1), "it")


@pytest.mark.parametrize("document", [{"a": [1, 2.5, None, True, "x" * 100]}, [], 3, "text", {"bins": {"1": 2}}])
def test_json_of_every_kind_is_read(document: object) -> None:
    assert parse_json(json.dumps(document), "it") == document
    assert parse_json(json.dumps(document).encode(), "it") == document


def test_notes_before_the_first_object_do_not_matter() -> None:
    assert parse_json('note: slow\n{"a": 1}\nnote: done\n', "it", after_notes=True) == {"a": 1}


@pytest.mark.parametrize("value", [-1, 1 << 64, True, "1", None, 1.5])
def test_a_count_is_a_whole_number_that_can_be_one(value: object) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        count(value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_is_finite(text: str) -> None:
    with pytest.raises(ValueError, match="is not a finite number"):
        finite(text)
