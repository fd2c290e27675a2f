"""Jobs that trim blocks, as a file system does with `discard` or `fstrim`: what they need, and what they show.

fio trims with the ioctl BLKDISCARD, on devices only, and waits for each trim. So the depth is 1, `-njN` trims from N
processes, and a mode with a file on the host has no twin for such a job. `seqtrimwrite` writes each block after it has
trimmed it. `randtrim` leaves trimmed blocks behind: before each slice, in its ramp, they are written again.

Trimmed blocks are not read from the disk, and a thin volume allocates them anew. So all jobs that trim have the end of
the arm's region for themselves, a quarter of it and at most 64 MiB (`Target.part_of`). No other job of the setup
uses it.
"""
