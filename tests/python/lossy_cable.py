"""A cable between two network namespaces that is slow and loses packets, in this process.

python lossy_cable.py NAMESPACE NAMESPACE MILLISECONDS SHARE: devices v0 and v1 are there when
"ready" is printed. The kernel's netem does the same, where it was built.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
LONGEST_FRAME = 1 << 16


def enter(namespace: str) -> None:
    with open(f"/run/netns/{namespace}", "rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def plug_in(namespace: str, device: str) -> int:
    """Of a device in that namespace: what is read was sent there, what is written arrives."""
    enter(namespace)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return end


def carry(ends: list[int], delay: float, lost: float) -> None:
    draw = random.Random(7)
    under_way: list[tuple[float, int, int, bytes]] = []  # arrival, order, to, frame
    order = 0
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select(ends, [], [], wait)
        for end in readable:
            frame = os.read(end, LONGEST_FRAME)
            if draw.random() >= lost:
                other = ends[1 - ends.index(end)]
                heapq.heappush(under_way, (time.monotonic() + delay, order, other, frame))
                order += 1
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(under_way)
            try:
                os.write(to, frame)
            except OSError:
                pass  # the device is down, or full: one more that is lost


def main() -> None:
    first, second, milliseconds, share = sys.argv[1:]
    ends = [plug_in(first, "v0"), plug_in(second, "v1")]
    print("ready", flush=True)
    carry(ends, float(milliseconds) / 1e3, float(share))


if __name__ == "__main__":
    main()
