# One line of base64 each: the script, its standard input, its arguments. So no code page changes them.
# PowerShell reads standard input itself, and passes the lines in $input.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
[Console]::Error.Write("virt-overhead-pid $PID`n")
if ($PSVersionTable.PSVersion.Major -lt 5) {
    $version = $PSVersionTable.PSVersion
    [Console]::Error.Write("PowerShell $version is too old: install Windows Management Framework 5.1")
    exit 1
}
$texts = @(foreach ($line in $input) { [Text.Encoding]::UTF8.GetString([Convert]::FromBase64String($line)) })
if ($texts.Count -lt 2) {
    [Console]::Error.Write('no standard input arrived: NO_INPUT')
    exit 1
}
$global:status = 0
$arguments = @($texts | Select-Object -Skip 2)
try {
    $printed = (& ([ScriptBlock]::Create($texts[0])) $texts[1] @arguments) -join "`n"
} catch {
    [Console]::Error.Write("$($_.Exception.Message) (line $($_.InvocationInfo.ScriptLineNumber))")
    exit 1
}
$bytes = [Text.Encoding]::UTF8.GetBytes($printed)
$out = [Console]::OpenStandardOutput()
$out.Write($bytes, 0, $bytes.Length)
$out.Flush()
exit $global:status
