"""Guests with Windows: how fio runs there by a timetable, and its clock.

A borrowed VM with Windows is measured as one with Linux: fio gets a job for each slice, and each job waits until its
time. There, it waits for a line from a named pipe, which the PowerShell script that starts fio writes. Another script
answers with the machine's clock (fio.py). What the system reports about itself and its disks is in guest.py.
"""
