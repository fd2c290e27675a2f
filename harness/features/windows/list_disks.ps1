# Its disks. The driver of a disk's controller is the service of the device above the disk. What a disk does not report
# is null or empty.
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
