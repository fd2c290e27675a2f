"""Resuming a run: complete rounds count, others are measured again, and the lab must be the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from harness.errors import ConfigError, ResultsError
from harness.lab.inventory import DiskById, HostSpec
from harness.measure.resume import Earlier, describe_evaluation, earlier_part, requested
from harness.measure.series import CampaignSpec
from harness.model.attach import Attach
from harness.model.job import parse_workload
from harness.model.layout import Lvm
from harness.model.mode import Budget
from harness.results import Journal, Measurement, RoundEvent, Run, RunStore
from harness.scenario.plan import plan_for
from harness.scenario.scenario import Scenario
from tests.build import RUN_ID, measure, optane, synthetic_run

DATA = Path(__file__).parent / "data"
(GROUP,) = plan_for(
    replace(optane(), modes=tuple(mode for mode in optane().modes if mode.name in ("host", "passthrough", "lvm"))),
    "smoke",
).groups
MEASURED = measure(GROUP, 3)


def begun(measurements: Sequence[Measurement] = MEASURED) -> tuple[RoundEvent, ...]:
    """The begin of each round, with the number of measurements that it has if it is whole."""
    sizes = Counter((each.group, each.round) for each in measurements)
    return tuple(RoundEvent("begun", group, number, size, None) for (group, number), size in sizes.items())


def rounds(measurements: Sequence[Measurement], events: Sequence[RoundEvent] = ()) -> list[int]:
    """The complete rounds if these measurements are left of those of MEASURED."""
    journal = Journal(tuple(measurements), (*begun(), *events))
    return [found[0].round for found in Earlier(journal).rounds(GROUP.id)]


def ran(provenance: Mapping[str, JsonValue]) -> Earlier:
    """A run with this provenance, of which nothing was measured."""
    return Earlier(run=replace(_unmeasured(), provenance=dict(provenance)))


@cache
def _unmeasured() -> Run:
    return synthetic_run(measured=0.0)


def test_complete_rounds_count_with_all_their_measurements() -> None:
    assert rounds(MEASURED) == [1, 2, 3]
    whole = Earlier(Journal(tuple(reversed(MEASURED)), begun())).rounds(GROUP.id)
    assert [measurement for found in whole for measurement in reversed(found)] == MEASURED


def test_a_round_that_was_only_begun_does_not_count() -> None:
    assert rounds(MEASURED[:-1]) == [1, 2]


def test_a_round_in_the_middle_that_lacks_one_job_of_one_arm_does_not_count() -> None:
    lost = next(each for each in MEASURED if each.round == 2 and each.arm == "twin:lvm")
    assert rounds([each for each in MEASURED if each is not lost]) == [1, 3]


def test_a_round_with_a_part_that_was_measured_twice_does_not_count() -> None:
    again = [each for each in MEASURED if each.round == 3][:2]
    assert rounds([*MEASURED, *again]) == [1, 2]


def test_a_round_that_was_abandoned_does_not_count_even_if_all_was_measured() -> None:
    abandoned = RoundEvent("abandoned", GROUP.id, 2, None, "the guest was lost at its end")
    assert rounds(MEASURED, events=[abandoned]) == [1, 3]
    assert rounds(MEASURED, events=[replace(abandoned, group="another")]) == [1, 2, 3]


def test_a_round_is_unfinished_until_it_is_whole_or_abandoned() -> None:
    own = [each for each in MEASURED if each.round == 3]
    begin = RoundEvent("begun", GROUP.id, 3, len(own), None)
    abandoned = RoundEvent("abandoned", GROUP.id, 3, None, "interrupted")
    assert Journal(tuple(own[:-1]), (begin,)).unfinished == (begin,)
    assert Journal((), (begin,)).unfinished == (begin,)
    assert Journal(tuple(own), (begin,)).unfinished == ()
    assert Journal(tuple(own[:1]), (begin, abandoned)).unfinished == ()


def test_the_number_of_a_round_is_never_used_again() -> None:
    events = (RoundEvent("begun", GROUP.id, 5, 9, None), RoundEvent("begun", "another", 9, 9, None))
    assert Journal(tuple(MEASURED), events).numbers(GROUP.id) == {1, 2, 3, 5}


def in_blocks(number: int) -> list[Measurement]:
    """MEASURED with each slice in so many blocks of a round."""
    return [replace(each, block=block) for each in MEASURED for block in range(1, number + 1)]


def test_a_round_of_several_blocks_needs_all_of_them() -> None:
    blocks = in_blocks(3)
    events = begun(blocks)
    assert len(Earlier(Journal(tuple(blocks), events)).rounds(GROUP.id)) == 3
    without = [each for each in blocks if (each.round, each.block, each.arm) != (2, 3, "host")]
    found = Earlier(Journal(tuple(without), events)).rounds(GROUP.id)
    assert [each[0].round for each in found] == [1, 3]
    assert len(found[0]) == 3 * len([each for each in MEASURED if each.round == 1])


def test_a_round_counts_also_if_it_left_out_a_cell_that_was_void() -> None:
    left_out = [each for each in MEASURED if each.round < 3 or not each.arm.endswith(":lvm")]
    found = Earlier(Journal(tuple(left_out), begun(left_out))).rounds(GROUP.id)
    assert [each[0].round for each in found] == [1, 2, 3]
    assert len(found[2]) < len(found[1])


def test_a_round_of_which_nothing_says_how_large_it_was_does_not_count() -> None:
    assert Earlier(Journal(tuple(MEASURED))).rounds(GROUP.id) == []


def test_another_groups_rounds_do_not_count() -> None:
    assert rounds([replace(each, group="hdd-batch1") for each in MEASURED]) == []


# --- what must be the same ---

BEFORE: dict[str, JsonValue] = {"host": {"kernel": "6.12.1", "fio": "fio-3.39"}, "images": {"guest": "a"}, "guest": 1}


@pytest.mark.parametrize("now", [BEFORE, {**BEFORE, "guest": 2}], ids=["the same", "another boot"])
def test_a_run_can_be_resumed_with_the_same_host_and_images(now: dict[str, JsonValue]) -> None:
    ran(BEFORE).require_same(now)


def test_an_image_that_was_built_again_with_the_same_files_is_the_same() -> None:
    def built(day: str, digest: str) -> dict[str, JsonValue]:
        return {"images": {"emulator": {"built_at": day, "sha256": {"qemu": digest}}}}

    ran(built("Monday", "a")).require_same(built("Tuesday", "a"))
    with pytest.raises(ConfigError, match=r"its images changed: emulator\.sha256\.qemu was a, is b\n"):
        ran(built("Monday", "a")).require_same(built("Tuesday", "b"))


def test_a_run_that_never_reached_its_host_can_be_resumed_on_any() -> None:
    Earlier().require_same(BEFORE)
    ran({"asked": {}}).require_same(BEFORE)


def test_another_kernel_is_refused_by_name_with_both_values() -> None:
    now: dict[str, JsonValue] = {**BEFORE, "host": {"kernel": "6.12.9", "fio": "fio-3.39"}}
    with pytest.raises(ConfigError, match=r"its host changed: kernel was 6\.12\.1, is 6\.12\.9\n") as caught:
        ran(BEFORE).require_same(now)
    assert caught.value.hint == "start a new run, without --resume"


def test_the_same_host_has_a_little_more_or_less_memory_after_each_boot() -> None:
    ran({"host": {"memory_bytes": "5163577344"}}).require_same({"host": {"memory_bytes": "5163569152"}})
    with pytest.raises(ConfigError, match=r"memory_bytes was 5163577344, is 9163569152\n"):
        ran({"host": {"memory_bytes": "5163577344"}}).require_same({"host": {"memory_bytes": "9163569152"}})


def test_a_fact_of_the_host_that_an_older_version_did_not_read_is_not_a_change() -> None:
    ran({"host": {"kernel": "6.12.1"}}).require_same({"host": {"kernel": "6.12.1", "clocksource": "tsc"}})
    with pytest.raises(ConfigError, match=r"clocksource was tsc, is hpet\n"):
        ran({"host": {"clocksource": "tsc"}}).require_same({"host": {"clocksource": "hpet"}})


SPEC = CampaignSpec(
    run_id=RUN_ID,
    host=HostSpec("lab1", "local", None, (DiskById("optane", "/dev/disk/by-id/a", "A", destroy=True),)),
    plans=(),
    scenarios={"optane": optane()},
    profile="smoke",
    seed=1,
    command="pytest",
)


def spec(scenario: Scenario, **changes: Any) -> CampaignSpec:
    return replace(SPEC, scenarios={"optane": scenario}, **changes)


def with_smoke(**changes: Any) -> Scenario:
    smoke, *others = optane().profiles
    return replace(optane(), profiles=(replace(smoke, **changes), *others))


def with_mode(**changes: Any) -> Scenario:
    *others, last = optane().modes
    return replace(optane(), modes=(*others, replace(last, **changes)))


OTHER_DISK = replace(SPEC.host, disks=(DiskById("optane", "/dev/disk/by-id/b", "B", destroy=True),))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (spec(with_smoke(runtime=9.0)), r"optane\.runtime was 1, is 9\.0$"),
        (spec(with_smoke(ramp=1.0)), r"optane\.ramp was 0, is 1\.0$"),
        (spec(with_smoke(blocks=4)), r"optane\.blocks was 1, is 4$"),
        (spec(with_smoke(span=2**30)), r"optane\.span was 67108864, is 1073741824$"),
        (spec(with_smoke(conditioning="steady")), r"optane\.conditioning was fill, is steady$"),
        (spec(optane(), host=OTHER_DISK), r"optane\.disk\.optane was .*serial A\), is .*serial B\)$"),
        (
            spec(with_mode(attach=Attach(aio="threads"))),
            r"optane\.mode\.raw-cached\.attach\.aio was io_uring, is threads; ",
        ),
        (spec(with_mode(layout=Lvm())), r"optane\.mode\.raw-cached\.layout\.kind was raw, is lvm; "),
    ],
)
def test_rounds_that_measured_something_else_are_refused_by_the_key_that_changed(now: CampaignSpec, said: str) -> None:
    stored = json.loads(json.dumps(requested(SPEC)))
    with pytest.raises(ConfigError) as caught:
        ran({"asked": stored}).require_same({"asked": requested(now)})
    assert caught.value.message.startswith("the run cannot be resumed: its scenario or lab file changed: ")
    assert re.search(said, caught.value.message)


@pytest.mark.parametrize(
    "now",
    [
        SPEC,
        spec(with_smoke(rounds=5, most_rounds=9)),
        spec(replace(optane(), budgets=())),
        spec(replace(optane(), modes=optane().modes[:2])),
        replace(SPEC, scenarios={}),
    ],
    ids=["the same", "more rounds", "other budgets", "fewer modes", "another selection"],
)
def test_a_run_can_be_resumed_with_more_rounds_other_budgets_or_another_selection(now: CampaignSpec) -> None:
    stored = json.loads(json.dumps(requested(SPEC)))
    ran({"asked": stored}).require_same({"asked": requested(now)})


def test_a_run_of_a_version_that_did_not_store_the_number_of_blocks_can_be_resumed() -> None:
    stored = {key: value for key, value in requested(SPEC).items() if key != "optane.blocks"}
    ran({"asked": stored}).require_same({"asked": requested(spec(with_smoke(blocks=4)))})


def test_a_run_without_this_provenance_can_be_resumed() -> None:
    ran({"host": {}}).require_same({"host": {}, "asked": requested(SPEC)})


def test_the_evaluation_is_stored_as_numbers_and_names() -> None:
    budget = Budget("iops", 0.1, workloads=(parse_workload("randread-4k"),), iodepth=(1, 32))
    scenario = replace(with_smoke(most_rounds=6, target=0.03), budgets=(budget,))
    found = describe_evaluation(spec(scenario, plans=(plan_for(scenario, "smoke"),)))
    assert found == json.loads(json.dumps(found))
    assert found == {
        "optane": {
            "rounds": 3,
            "most_rounds": 6,
            "target": 0.03,
            "time_limit": None,
            "budgets": [
                {
                    "metric": "iops",
                    "share": 0.1,
                    "absolute": None,
                    "both": None,
                    "modes": None,
                    "workloads": [
                        {
                            "rw": "randread",
                            "bs": 4096,
                            "numjobs": 1,
                            "read_share": None,
                            "rate": None,
                            "label": None,
                            "iodepths": [],
                            "sizes": [],
                            "random_share": None,
                            "syncs": False,
                            "durable": False,
                            "bursts": None,
                            "poisson": False,
                            "region": None,
                            "seconds_each": None,
                            "from_file": None,
                            "pattern": "randread",
                        }
                    ],
                    "iodepth": [1, 32],
                    "lab": ["bare-metal"],
                    "difference": None,
                }
            ],
            "decompositions": [],
            "searches": [],
        }
    }


# --- modes that were stored by another version ---


def stored_as(mode: JsonValue) -> Earlier:
    return ran({"asked": {"optane.mode.raw-cached": mode}})


def test_a_mode_that_changed_is_refused_by_the_option_that_changed() -> None:
    with pytest.raises(ConfigError) as caught:
        stored_as(requested(SPEC)["optane.mode.raw-cached"]).require_same(
            {"asked": requested(spec(with_mode(attach=Attach(cache="writeback", aio="threads", iothread=False))))}
        )
    assert caught.value.message == (
        "the run cannot be resumed: its scenario or lab file changed: "
        "optane.mode.raw-cached.attach.aio was io_uring, is threads; "
        "optane.mode.raw-cached.attach.iothread was true, is false"
    )


def test_an_option_that_the_version_of_the_run_did_not_have_has_its_default() -> None:
    stored = json.loads(json.dumps(requested(SPEC)["optane.mode.raw-cached"]))
    assert stored["attach"].pop("controller") == "single"
    stored_as(stored).require_same({"asked": requested(SPEC)})
    changed = with_mode(attach=Attach(cache="writeback", aio="io_uring", controller="shared"))
    with pytest.raises(ConfigError, match=r"raw-cached\.attach\.controller was single, is shared\n"):
        stored_as(stored).require_same({"asked": requested(spec(changed))})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "Lvm(",
        "\0",
        "Lvm(kind='lvm')",
        "Lvm(**{}), None",
        "Lvm(kind='lvm'), Attach(bus='isa')",
        "{[]: 1}, None",
    ],
)
def test_a_stored_mode_that_cannot_be_read_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stored_as(text).require_same({"asked": requested(SPEC)})
    assert f"optane.mode.raw-cached was {text}, is {{'layout': {{" in caught.value.message


# --- the stored run ---


@pytest.fixture
def stored(tmp_path: Path) -> RunStore:
    """A run of the profile smoke on the host lab1 that was cut short."""
    run = synthetic_run(status="interrupted")
    store = RunStore.create(tmp_path, RUN_ID)
    store.append(*begun())
    for measurement in MEASURED:
        (store.path / measurement.raw).touch()
        store.append(measurement)
    store.write_results(run)
    return store


def test_a_run_goes_on_with_its_seed_and_its_journal(stored: RunStore) -> None:
    earlier, run_id, seed = earlier_part(stored, "lab1", "smoke")
    assert run_id == stored.read_results().run.id
    assert seed == stored.read_results().run.seed
    assert earlier.journal.measurements == tuple(MEASURED)
    assert earlier.run == stored.read_results()


@pytest.mark.parametrize(
    ("host", "profile", "said", "hint"),
    [
        ("node1", "smoke", "its host is lab1, not node1", "use --host=lab1"),
        ("lab1", "standard", "its profile is smoke, not standard", "use --profile=smoke"),
    ],
)
def test_another_host_or_profile_is_refused_with_the_option_to_give(
    stored: RunStore, host: str, profile: str, said: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        earlier_part(stored, host, profile)
    assert str(caught.value.hint).startswith(hint)


def test_a_directory_without_results_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ResultsError):
        earlier_part(RunStore.create(tmp_path, RUN_ID), "lab1", "smoke")
