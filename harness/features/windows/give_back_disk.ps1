# $serial, and what the disk was before.
param($given, $serial, $offline, $readonly)
$found = @(Get-Disk | Where-Object { "$($_.SerialNumber)".Trim() -ceq $serial })
if ($found.Count -ne 1) { throw "it has $($found.Count) disks with the serial number $serial" }
$disk = $found[0]
if ($disk.IsBoot -or $disk.IsSystem) { throw "disk $($disk.Number) with the serial number $serial has Windows on it" }
Set-Disk -Number $disk.Number -IsReadOnly ($readonly -eq 'True')
Set-Disk -Number $disk.Number -IsOffline ($offline -eq 'True')
