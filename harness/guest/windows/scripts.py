"""Scripts for PowerShell 5.1 that read the facts and disks of Windows. Each prints one JSON object."""

from __future__ import annotations

# What the VM has. A VM without Microsoft Defender has no Get-MpComputerStatus. A driver of a bus on which the VM has no
# disk yet is only in the driver store. fio's installer changes PATH, which the SSH service reads at its start.
LOOK = r"""
param($given)
$fio = Get-Command fio.exe -ErrorAction SilentlyContinue | Select-Object -First 1 -ExpandProperty Source
if (-not $fio -and (Test-Path "$env:ProgramFiles\fio\fio.exe")) { $fio = "$env:ProgramFiles\fio\fio.exe" }
$version = if ($fio) { "$(& $fio --version)" } else { '' }
$user = [Security.Principal.WindowsPrincipal][Security.Principal.WindowsIdentity]::GetCurrent()
$administrator = $user.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)
$antivirus = try { Get-MpComputerStatus | Select-Object RealTimeProtectionEnabled } catch { $null }
$system = Get-CimInstance Win32_OperatingSystem | Select-Object 'Caption', 'Version'
$computer = Get-CimInstance Win32_ComputerSystem
$computer = $computer | Select-Object 'Manufacturer', 'Model', 'NumberOfLogicalProcessors', 'TotalPhysicalMemory'
$processor = Get-CimInstance Win32_Processor | Select-Object -First 1 -ExpandProperty Name
$drivers = Get-CimInstance Win32_PnPSignedDriver | Where-Object { $_.DeviceID -like 'PCI\VEN_1AF4*' }
$drivers = @($drivers | Select-Object 'DeviceID', 'DeviceName', 'DriverVersion')
$store = "$env:SystemRoot\System32\DriverStore\FileRepository"
$packages = @('viostor', 'vioscsi' | Where-Object { Test-Path "$store\$($_).inf_*" })
[ordered]@{
    PowerShell = "$($PSVersionTable.PSVersion)"
    Administrator = $administrator
    Fio = $version
    System = $system
    Computer = $computer
    Processor = $processor
    Drivers = $drivers
    Packages = $packages
    PowerPlan = "$(powercfg.exe /getactivescheme)"
    Antivirus = $antivirus
    Ticks = [Diagnostics.Stopwatch]::Frequency
} | ConvertTo-Json -Depth 4
"""

# Its disks. The driver of a disk's controller is the service of the device above the disk. What a disk does not report
# is null or empty.
DISKS = r"""
param($given)
Update-HostStorageCache
$physical = @(foreach ($disk in @(Get-PhysicalDisk)) {
    $cache = try { Get-StorageAdvancedProperty -PhysicalDisk $disk -ErrorAction Stop } catch { $null }
    $cached = if ($cache) { $cache.IsDeviceCacheEnabled } else { $null }
    [ordered]@{ DeviceId = "$($disk.DeviceId)"; MediaType = "$($disk.MediaType)"; IsDeviceCacheEnabled = $cached }
})
$drives = @(foreach ($drive in @(Get-CimInstance Win32_DiskDrive)) {
    $service = try {
        $parent = (Get-PnpDeviceProperty -InstanceId $drive.PNPDeviceID -KeyName DEVPKEY_Device_Parent).Data
        (Get-PnpDeviceProperty -InstanceId $parent -KeyName DEVPKEY_Device_Service).Data
    } catch { '' }
    [ordered]@{ Index = $drive.Index; Service = "$service" }
})
$columns = 'Number', 'FriendlyName', 'SerialNumber', 'Size', 'LogicalSectorSize', 'PhysicalSectorSize',
    'IsBoot', 'IsSystem', 'IsOffline', 'IsReadOnly'
$disks = @(Get-Disk | Select-Object $columns)
[ordered]@{ Disks = $disks; Physical = $physical; Drives = $drives } | ConvertTo-Json -Depth 4
"""

# Only what finds a disk.
NUMBERS = r"""
param($given)
$disks = @(Get-Disk | Select-Object 'Number', 'SerialNumber')
[ordered]@{ Disks = $disks } | ConvertTo-Json
"""

# $serial, $writes: "True" or "False". It takes the disk offline, because Windows refuses raw writes where a volume is,
# and makes it writable, because by default Windows Server makes a new disk of a shared bus read-only. The disk is found
# and checked by the same command. Prints what it changed, as the arguments of the next script.
TAKE = r"""
param($given, $serial, $writes)
$found = @(Get-Disk | Where-Object { "$($_.SerialNumber)".Trim() -ceq $serial })
if ($found.Count -ne 1) { throw "it has $($found.Count) disks with the serial number $serial" }
$disk = $found[0]
if ($disk.IsBoot -or $disk.IsSystem) { throw "disk $($disk.Number) with the serial number $serial has Windows on it" }
if (-not $disk.IsOffline) { Set-Disk -Number $disk.Number -IsOffline $true }
if ($writes -eq 'True' -and $disk.IsReadOnly) { Set-Disk -Number $disk.Number -IsReadOnly $false }
[ordered]@{ IsOffline = $disk.IsOffline; IsReadOnly = $disk.IsReadOnly } | ConvertTo-Json
"""

# $serial, and what the disk was before.
GIVE_BACK = r"""
param($given, $serial, $offline, $readonly)
$found = @(Get-Disk | Where-Object { "$($_.SerialNumber)".Trim() -ceq $serial })
if ($found.Count -ne 1) { throw "it has $($found.Count) disks with the serial number $serial" }
$disk = $found[0]
if ($disk.IsBoot -or $disk.IsSystem) { throw "disk $($disk.Number) with the serial number $serial has Windows on it" }
Set-Disk -Number $disk.Number -IsReadOnly ($readonly -eq 'True')
Set-Disk -Number $disk.Number -IsOffline ($offline -eq 'True')
"""
