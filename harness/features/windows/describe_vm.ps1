# What the VM has. A VM without Microsoft Defender has no Get-MpComputerStatus. A driver of a bus on which the VM has no
# disk yet is only in the driver store. fio's installer changes PATH, which the SSH service reads at its start.
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
