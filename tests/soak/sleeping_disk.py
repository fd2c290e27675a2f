"""A block device of the lab host that sleeps: an I/O after a pause waits. Runs on the lab host, by itself.

    python3 - DEVICE OFFSET SECTORS IDLE STALL < sleeping_disk.py

It makes /dev/nbd0 of SECTORS sectors of DEVICE from sector OFFSET on, and goes on in the background. A request that
arrives after IDLE seconds without one waits for STALL seconds. It ends when nothing is on top of /dev/nbd0 any more.
The protocol: Linux, include/uapi/linux/nbd.h.
"""

import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

DISK = "/dev/nbd0"
HOLDERS = Path("/sys/block/nbd0/holders")
SECTOR = 512
SET_SOCK, SET_BLKSIZE, DO_IT, CLEAR_SOCK, SET_SIZE_BLOCKS, DISCONNECT = (
    0xAB00,
    0xAB01,
    0xAB03,
    0xAB04,
    0xAB07,
    0xAB08,
)
REQUEST, REPLY = struct.Struct(">IIQQI"), struct.Struct(">IIQ")
REQUEST_MAGIC, REPLY_MAGIC = 0x25609513, 0x67446698
READ, WRITE = 0, 1
LARGEST = 4 * 1024**2


def main() -> None:
    device = sys.argv[1]
    offset, sectors = map(int, sys.argv[2:4])
    idle, stall = map(float, sys.argv[4:6])
    ours, kernels = socket.socketpair()
    disk = os.open(DISK, os.O_RDWR)
    fcntl.ioctl(disk, SET_BLKSIZE, SECTOR)
    fcntl.ioctl(disk, SET_SIZE_BLOCKS, sectors)
    fcntl.ioctl(disk, SET_SOCK, kernels.fileno())
    if os.fork() == 0:
        detach()
        ours.close()  # else the kernel would not notice the end of the other process
        fcntl.ioctl(disk, DO_IT)
        fcntl.ioctl(disk, CLEAR_SOCK)
        os._exit(0)
    if os.fork() == 0:
        detach()
        kernels.close()
        serve(ours, os.open(device, os.O_RDWR | os.O_DIRECT), offset * SECTOR, idle, stall)
        fcntl.ioctl(disk, DISCONNECT)


def detach() -> None:
    """Leave the session of the login, and its input and output."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def serve(kernel: socket.socket, device: int, start: int, idle: float, stall: float) -> None:
    buffer = mmap.mmap(-1, LARGEST)  # O_DIRECT needs whole pages
    used = False
    while True:
        began = time.monotonic()
        while not select.select([kernel], [], [], 0.5)[0]:
            held = any(HOLDERS.iterdir())
            if used and not held:
                return
            used |= held
        waited = time.monotonic() - began
        _, kind, handle, at, length = REQUEST.unpack(received(kernel, REQUEST.size))
        data = memoryview(buffer)[:length]
        if kind == WRITE:
            data[:] = received(kernel, length)
        if waited >= idle:
            time.sleep(stall)
        if kind == READ:
            os.preadv(device, [data], start + at)
        elif kind == WRITE:
            os.pwritev(device, [data], start + at)
        kernel.sendall(REPLY.pack(REPLY_MAGIC, 0, handle) + (bytes(data) if kind == READ else b""))


def received(kernel: socket.socket, length: int) -> bytes:
    parts = b""
    while len(parts) < length:
        parts += kernel.recv(length - len(parts))
    return parts


main()
