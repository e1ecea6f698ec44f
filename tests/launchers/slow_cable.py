"""One end of a cable on which every frame takes a while. Not every kernel has netem.

    python slow_cable.py NAME SECONDS DESCRIPTOR

makes the interface NAME, and sends its frames to the socket DESCRIPTOR, at whose other end another one does the same.
"""

import collections
import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LARGEST = 65536


def main(name, delay, descriptor):
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    other = socket.socket(fileno=descriptor)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    held = collections.deque()
    while True:
        wait = max(held[0][0] - time.monotonic(), 0.0) if held else None
        readable, _, _ = select.select([tap, other], [], [], wait)
        if tap in readable:
            held.append((time.monotonic() + delay, os.read(tap, LARGEST)))
        if other in readable:
            frame = other.recv(LARGEST)
            if not frame:
                return
            with contextlib.suppress(OSError):  # the interface is down yet
                os.write(tap, frame)
        while held and held[0][0] <= time.monotonic():
            other.send(held.popleft()[1])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
