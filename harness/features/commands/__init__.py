"""Commands of the user as workloads: `[workload.NAME]` with a command and how its figure is read.

After the rounds of a group, the command runs on a file system on the mode's volume, by turns on the host and in the
guest, in random order. request.py has the table of a scenario file and the record, running.py runs it, and report.py
shows it.

Each run has its own mount and process namespaces: when it ends, or is ended, the kernel ends whatever it started and
unmounts the file system. So a run leaves nothing to remove.
"""
