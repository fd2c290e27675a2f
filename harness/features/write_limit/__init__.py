"""The limit of the bytes that a run writes to each disk (`--max-writes`), by the disk's own counter.

Before the run, `fitting` leaves out of the plans what would exceed the limit in their fewest rounds. During the run,
`limit` is asked before each setup, round and timetable, and gives fio a limit in each slice. Each permission is noted
in the journal before the step begins. Its meter reads the counters, so the count also holds for a run that was killed:
by the counter if the host still runs, else with the most that the step may have written. Further rounds follow as far
as the limit allows.
"""
