"""The figures of a run in the words of other tools: CrystalDiskMark, dd, pveperf, ioping, YABS, diskspd, IOMeter.

report.py has one table: the line of a tool, which jobs are the same I/O, the metric, the unit, and what differs. A new
tool is an entry of `LINES`. The report shows the lines that a run can fill.
"""
