"""Calibration: how small a difference a lab can show, whether it finds a real one, and how long its slices should be.

`virt-overhead calibrate` measures trials on one disk of a host (measuring.py): a device against itself, a known delay,
series of short slices, and boots. command.py computes what they show, and calibration.py stores it in a file of the
host, which runs quote and reports put into words. Before a run, detectable.py says which overhead its cells can show,
by the noise of earlier runs or of the calibration.
"""
