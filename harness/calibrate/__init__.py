"""Calibration of a lab host: how often it shows a difference where there is none, and whether it finds one that is."""
