"""The answers of a run: which mode to use for what, what single options do, and which layer is responsible for a loss.

uses.py has the typical uses of a disk, with the jobs and the metric that judge each, and what speaks for one of several
equal modes. decision.py chooses the mode of each use: a mode is worse only if its interval is beyond the best one. It
also reads modes that differ in one option of the attachment. responsible.py finds what to change below a guest.
report.py has these as content of reports, card.py as a picture for a forum post. `virt-overhead advise` shows the
change to make with the line that sets it, and measures with `--verify` whether it holds (advice.py). A new use is an
entry of `USES`.
"""
