# It may not have started yet.
param($given, $token)
$directory = Join-Path (Join-Path ([IO.Path]::GetTempPath()) 'virt-overhead') "pacing-$token"
foreach ($try in 1..10) {
    $owner = Get-Content (Join-Path $directory 'pid') -ErrorAction SilentlyContinue
    if ($owner) {
        $null = cmd.exe /c "taskkill /PID $owner /T /F 2>nul"
        Remove-Item $directory -Recurse -Force -ErrorAction SilentlyContinue
        break
    }
    Start-Sleep -Milliseconds 200
}
