"""The directory of a run: who may resume it, links in it, and two processes that write to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.events import Events
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier, earlier_part
from harness.measure.series import CampaignSpec
from harness.results import RoundEvent, RunStore
from tests.build import RUN_ID
from tests.unit.killed_campaign import HOST, campaign, kept_at_every_moment, measured, plan, scenario
from tests.unit.recorded_campaign import RecordedMeasurer

OTHER = 65534


@pytest.fixture
def moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What a run left at each moment at which it could have been killed, in order; `whole` is its end."""
    monkeypatch.chdir(tmp_path)
    kept_at_every_moment(1e9)
    return sorted(tmp_path.glob("killed-*"), key=lambda path: int(path.name.partition("-")[2]))


def unfinished(moments: list[Path]) -> RunStore:
    """The run in the middle of a round, with some measurements before it."""
    for path in moments:
        store = RunStore(path / RUN_ID)
        if store.results_path.exists() and store.read_journal().unfinished and store.read_journal().measurements[2:]:
            return store
    raise AssertionError("no moment is within a round")


def resumed(store: RunStore, earlier: Earlier) -> Campaign:
    spec = CampaignSpec(RUN_ID, HOST, (plan(),), {scenario().name: scenario()}, "smoke", seed=7, command="pytest")
    phases = Phases(Events())
    return Campaign(spec, store, RecordedMeasurer(spec, store, None, phases), phases, earlier)


def measurements_of(store: RunStore) -> Counter[tuple[object, ...]]:
    return Counter(
        (each.group, each.round, each.arm, each.job, each.repeat) for each in store.read_journal().measurements
    )


def test_what_another_process_measured_since_the_run_was_read_counts_and_is_not_measured_again(
    moments: list[Path],
) -> None:
    before, *_ = earlier_part(unfinished(moments), HOST.name, "smoke")
    now = RunStore.open(Path("whole") / RUN_ID)
    whole = {group.id: now.read_journal().whole(group.id) for group in plan().groups}
    run = measured(resumed(now, before))
    assert run.run.status == "complete"
    assert {group.id: now.read_journal().whole(group.id) for group in plan().groups} == whole
    assert set(measurements_of(now).values()) == {1}


def test_a_run_that_another_process_measures_is_not_resumed(moments: list[Path]) -> None:
    store = unfinished(moments)
    code = f"""
import sys
from pathlib import Path
from harness.results import RunStore
store = RunStore(Path({str(store.path)!r}))
store.claim()
print("claimed", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(ResultsError, match="is being measured by another process") as refused:
            campaign(store, resume=True)
        assert "virt-overhead watch" in (refused.value.hint or "")
        other.communicate("")
    assert measured(campaign(store, resume=True)).run.status == "complete"


def test_a_journal_that_grew_while_the_run_waited_for_its_host_is_not_continued(moments: list[Path]) -> None:
    store = unfinished(moments)
    late = campaign(store, resume=True)
    before = measurements_of(store)
    with store.journal_path.open("a") as journal:  # by a process that does not see the lock
        journal.write("\n")
    with pytest.raises(ResultsError, match="was changed by another process since it was read"):
        measured(late)
    assert measurements_of(store) == before


def link_of_the_journal(store: RunStore, victim: Path) -> None:
    shutil.copy(store.journal_path, victim)
    store.journal_path.unlink()
    store.journal_path.symlink_to(victim)


def second_name_of_the_journal(store: RunStore, victim: Path) -> None:
    shutil.copy(store.journal_path, victim)
    store.journal_path.unlink()
    store.journal_path.hardlink_to(victim)


def pipe_as_the_journal(store: RunStore, _: Path) -> None:
    store.journal_path.unlink()
    os.mkfifo(store.journal_path)


def file_as_the_raw_files(store: RunStore, _: Path) -> None:
    shutil.rmtree(store.path / "raw")
    (store.path / "raw").touch()


def link_of_the_raw_files(store: RunStore, victim: Path) -> None:
    shutil.copytree(store.path / "raw", victim)
    shutil.rmtree(store.path / "raw")
    (store.path / "raw").symlink_to(victim)


def link_of_the_results(store: RunStore, victim: Path) -> None:
    shutil.copy(store.results_path, victim)
    store.results_path.unlink()
    store.results_path.symlink_to(victim)


def directory_of_another_user(store: RunStore, _: Path) -> None:
    os.chown(store.path, OTHER, OTHER)


def journal_of_another_user(store: RunStore, _: Path) -> None:
    os.chown(store.journal_path, OTHER, OTHER)


def directory_for_all(store: RunStore, _: Path) -> None:
    store.path.chmod(0o777)


@pytest.mark.parametrize(
    ("prepared", "why"),
    [
        (link_of_the_journal, "journal.jsonl is a link"),
        (second_name_of_the_journal, "journal.jsonl has several names"),
        (pipe_as_the_journal, "journal.jsonl is a pipe, a device or something else"),
        (file_as_the_raw_files, "raw is a pipe, a device or something else"),
        (link_of_the_raw_files, "raw is a link"),
        (link_of_the_results, "results.json is a link"),
        (directory_of_another_user, f"belongs to user {OTHER}"),
        (journal_of_another_user, f"journal.jsonl belongs to user {OTHER}"),
        (directory_for_all, "can be changed by all users"),
    ],
)
def test_a_run_that_somebody_else_prepared_is_not_resumed(
    moments: list[Path], tmp_path: Path, prepared: Callable[[RunStore, Path], None], why: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files to other users")
    store = unfinished(moments)
    victim = tmp_path / "victim"
    prepared(store, victim)
    before = victim_state(victim)
    with pytest.raises(ResultsError, match=why):
        measured(campaign(RunStore.open(store.path), resume=True))
    assert victim_state(victim) == before


def victim_state(victim: Path) -> object:
    if victim.is_dir():
        return sorted(path.name for path in victim.iterdir())
    return victim.read_bytes() if victim.exists() else None


def test_links_that_appear_while_a_run_measures_are_not_followed(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for path in (store.journal_path, store.results_path, store.report_path, store.path / "raw" / "out.json"):
        path.symlink_to(victim)
    with pytest.raises(ResultsError, match=r"journal\.jsonl cannot be written"):
        store.append(RoundEvent("begun", "group", 1, 2, None))
    store.write_page("index.html", "<html>")
    assert store.save_raw("out.json", "{}", command="fio") == "raw/out-2.json"
    assert victim.read_text() == "precious"
    assert not store.report_path.is_symlink()


def test_a_directory_that_was_exchanged_while_a_run_measures_gets_nothing(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    other = tmp_path / "other"
    other.mkdir()
    (other / "raw").mkdir()
    store.path.rename(tmp_path / "moved")
    for exchange in (lambda: store.path.symlink_to(other), lambda: other.rename(store.path)):
        exchange()
        for write in (
            lambda: store.append(RoundEvent("begun", "group", 1, 2, None)),
            lambda: store.write_page("index.html", "<html>"),
            lambda: store.save_raw("out.json", "{}"),
        ):
            with pytest.raises(ResultsError, match="cannot be written"):
                write()
        assert [path.name for path in store.path.iterdir()] == ["raw"]
        assert list((store.path / "raw").iterdir()) == []
        if store.path.is_symlink():
            store.path.unlink()
