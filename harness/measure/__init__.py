"""Measures: from a planned group of cells to measurements in the journal, and records of what they show so far.

`Campaign` measures everything of one run on one host, group after group. A `Measurer` prepares each group: it leases
the host, builds and fills the layouts, and boots the guest. Then `SeriesEngine.run_series(policy, prepared)`
measures. The policy chooses the next step, or none. `GroupRounds` is the ordinary policy: rounds until the interim
analysis decides every cell, then series of the jobs to measure again. Features follow with policies of
their own, and a calibration has another one. The engine is the same for all: it asks the limit of bytes written,
notes the round in the journal, boots if the round has its own boot, and measures timetable after timetable. If a
simulated lab fails, the round does not count, the group is prepared again, and the policy chooses anew.

A timetable (`slices.run_timetable`) is one process of fio on each machine, with a job for each slice that starts at
its planned time, and the host's counters between the slices. Each slice becomes a measurement, which is in the
journal before anything is computed from it. The `Recorder` has what counts and writes results.json. A run that was
killed continues with its whole rounds (`resume`). What it left on hosts is removed by the creation log (`reap`).
"""
