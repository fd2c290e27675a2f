# $given: a line of starts TIME:PROCESSES with the time in seconds of QueryPerformanceCounter, then fio's job file.
# Each process of a job has an instance of the job's pipe. The pipes stay open, because a line that nobody has read yet
# must not be lost. Windows wakes a program up only every 15.6 ms, so the script does not sleep shortly before a start.
# $args: the numbers of the disks in the job file. The disks of the run are offline, so fio never uses another one.
param($given, $token)
$starts, $jobs = $given -split "`n", 2
$parent = Join-Path ([IO.Path]::GetTempPath()) 'virt-overhead'
$directory = Join-Path $parent "pacing-$token"
foreach ($old in @(Get-ChildItem -Path $parent -Filter 'pacing-*' -Directory -ErrorAction SilentlyContinue)) {
    $owner = Get-Content (Join-Path $old.FullName 'pid') -ErrorAction SilentlyContinue
    if ($owner -and -not (Get-Process -Id $owner -ErrorAction SilentlyContinue)) {
        Remove-Item $old.FullName -Recurse -Force -ErrorAction SilentlyContinue
    }
}
$null = New-Item -ItemType Directory -Path $directory
$pipes = New-Object Collections.ArrayList
$fio = $null
try {
    Set-Content -Path (Join-Path $directory 'pid') -Value $PID
    foreach ($number in $args) {
        $disk = Get-Disk -Number $number
        if (-not $disk.IsOffline -or $disk.IsBoot -or $disk.IsSystem) { throw "disk $number is in use: not offline" }
    }
    [IO.File]::WriteAllText((Join-Path $directory 'jobs.fio'), $jobs)
    $number = 0
    foreach ($start in -split $starts) {
        $at, $processes = $start -split ':'
        for ($i = 0; $i -lt [int]$processes; $i++) {
            $pipe = New-Object IO.Pipes.NamedPipeServerStream("voh-$token-$number",
                [IO.Pipes.PipeDirection]::Out, [int]$processes, [IO.Pipes.PipeTransmissionMode]::Byte,
                [IO.Pipes.PipeOptions]::Asynchronous, 0, 64)
            $null = $pipes.Add(@{ Pipe = $pipe; Connected = $pipe.BeginWaitForConnection($null, $null)
                At = [double]::Parse($at, [Globalization.CultureInfo]::InvariantCulture); Released = $false })
        }
        $number++
    }
    $program = Get-Command fio.exe -ErrorAction SilentlyContinue | Select-Object -First 1 -ExpandProperty Source
    if (-not $program) { $program = "$env:ProgramFiles\fio\fio.exe" }
    $how = New-Object Diagnostics.ProcessStartInfo($program, '--output-format=json+ jobs.fio')
    $how.WorkingDirectory = $directory
    $how.UseShellExecute = $false
    $how.CreateNoWindow = $true
    $how.RedirectStandardInput = $true
    $how.RedirectStandardOutput = $true
    $how.RedirectStandardError = $true
    $fio = [Diagnostics.Process]::Start($how)
    $fio.StandardInput.Close()
    $printed = $fio.StandardOutput.ReadToEndAsync()
    $complaints = $fio.StandardError.ReadToEndAsync()
    $line = [Text.Encoding]::ASCII.GetBytes("go`r`n")
    $waiting = @($pipes)
    while ($waiting.Count -and -not $fio.HasExited) {
        $now = [Diagnostics.Stopwatch]::GetTimestamp() / [Diagnostics.Stopwatch]::Frequency
        $left, $late = 0.2, $false
        foreach ($each in $waiting) {
            if ($each.At -gt $now) { $left = [Math]::Min($left, $each.At - $now); continue }
            if (-not $each.Connected.IsCompleted) { $late = $true; continue }
            $each.Pipe.EndWaitForConnection($each.Connected)
            $each.Pipe.Write($line, 0, $line.Length)
            $each.Released = $true
        }
        $waiting = @($waiting | Where-Object { -not $_.Released })
        if ($late) { [Threading.Thread]::Sleep(5) }
        elseif ($left -gt 0.04) { [Threading.Thread]::Sleep([int](($left - 0.03) * 1000)) }
        else { [Threading.Thread]::Sleep(0) }
    }
    $fio.WaitForExit()
    [Console]::Error.Write($complaints.Result)
    $global:status = $fio.ExitCode
    $printed.Result
} finally {
    if ($fio -and -not $fio.HasExited) { $null = cmd.exe /c "taskkill /PID $($fio.Id) /T /F 2>nul" }
    foreach ($each in $pipes) { $each.Pipe.Dispose() }
    Remove-Item $directory -Recurse -Force -ErrorAction SilentlyContinue
}
