"""Calibration of a lab host: how often it shows a false difference, and whether it finds a real one."""
