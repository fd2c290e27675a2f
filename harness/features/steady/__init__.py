"""Bringing a disk to its steady state before it is measured: `conditioning = "steady"` of a profile.

A new SSD writes faster than it will later. So each region is written twice at 128 KiB, then the job with the highest
load runs on it in rounds of 10 s until the last five rounds keep SNIA's criteria (`criteria.py`), at most 25 times
(`measuring.py`). A disk that does not become steady is measured too: `regions.py` warns, and draws the rounds. Without
this feature, profiles fill the regions once.
"""
