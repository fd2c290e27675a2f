"""Windows in a borrowed VM, by PowerShell over OpenSSH. What never ran: docs/windows.md."""
