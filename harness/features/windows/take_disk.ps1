# $serial, $writes: "True" or "False". It takes the disk offline, because Windows refuses raw writes where a volume is,
# and makes it writable, because by default Windows Server makes a new disk of a shared bus read-only. The disk is found
# and checked by the same command. Prints what it changed, as the arguments of the next script.
param($given, $serial, $writes)
$found = @(Get-Disk | Where-Object { "$($_.SerialNumber)".Trim() -ceq $serial })
if ($found.Count -ne 1) { throw "it has $($found.Count) disks with the serial number $serial" }
$disk = $found[0]
if ($disk.IsBoot -or $disk.IsSystem) { throw "disk $($disk.Number) with the serial number $serial has Windows on it" }
if (-not $disk.IsOffline) { Set-Disk -Number $disk.Number -IsOffline $true }
if ($writes -eq 'True' -and $disk.IsReadOnly) { Set-Disk -Number $disk.Number -IsReadOnly $false }
[ordered]@{ IsOffline = $disk.IsOffline; IsReadOnly = $disk.IsReadOnly } | ConvertTo-Json
