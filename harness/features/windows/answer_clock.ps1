# Answers each line with the time in seconds of QueryPerformanceCounter, which is fio's CLOCK_MONOTONIC there.
$frequency = [Diagnostics.Stopwatch]::Frequency
[Console]::Out.WriteLine('ready')
foreach ($line in $input) {
    $seconds = [Diagnostics.Stopwatch]::GetTimestamp() / $frequency
    [Console]::Out.WriteLine('at ' + $seconds.ToString('F6', [Globalization.CultureInfo]::InvariantCulture))
}
