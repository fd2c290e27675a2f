"""Workers of xdist without the time that each needs to import the harness: a process that has it forks for each.

xdist starts a worker as `sys.executable -u -c ...`. Here that is a small program, which hands its input and output to
the process that forks, and ends when the worker does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path
from shlex import quote

_PROGRAM = """#!/bin/sh
[ "$1" = -u ] || exec {python} "$@"
exec {python} -IS -c '
import socket
with socket.socket(socket.AF_UNIX) as server:
    server.connect(bytes.fromhex("{address}"))
    socket.send_fds(server, [b"0"], [0, 1, 2])
    server.recv(1)
'
"""


def fork_workers(program: Path) -> None:
    """Have the workers of this process forked from what it is now. `program` is written, and becomes sys.executable."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen()
    run_has_ended, run_goes_on = os.pipe()
    if os.fork() == 0:
        os.close(run_goes_on)
        _serve(listener, run_has_ended)
    os.close(run_has_ended)
    address = bytes(listener.getsockname()).hex()
    listener.close()
    program.write_text(_PROGRAM.format(python=quote(sys.executable), address=address))
    program.chmod(0o755)
    sys.executable = str(program)


def _serve(listener: socket.socket, run_has_ended: int) -> None:
    """Fork for each connection until the run has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    while run_has_ended not in select.select([listener.fileno(), run_has_ended], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            os.close(run_has_ended)
            _work(listener, connection)
        connection.close()
    os._exit(0)


def _work(listener: socket.socket, connection: socket.socket) -> None:
    """Be the worker. The end of the process closes the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["-c"]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the run's may have read ahead
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    raise SystemExit
