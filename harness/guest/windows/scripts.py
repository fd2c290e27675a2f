"""Scripts for PowerShell 5.1 that read the facts and disks of Windows. Each prints one JSON object."""

from __future__ import annotations

from harness.shipped import read_script

LOOK = read_script("harness.guest.windows", "describe_vm.ps1")

DISKS = read_script("harness.guest.windows", "list_disks.ps1")

# Only what finds a disk.
NUMBERS = r"""
param($given)
$disks = @(Get-Disk | Select-Object 'Number', 'SerialNumber')
[ordered]@{ Disks = $disks } | ConvertTo-Json
"""

TAKE = read_script("harness.guest.windows", "take_disk.ps1")

GIVE_BACK = read_script("harness.guest.windows", "give_back_disk.ps1")
