"""A relay between hosts that delays packets and loses some, for kernels without netem.

    python -m tests.support.relay ADDRESS:DELAY:LOSS ...

For each argument, the relay creates a TUN device in its network namespace: port0, port1 and so on.
The process that has started the relay moves each device into the namespace of a host, and assigns
ADDRESS to it. The relay reads the packets that hosts send from the devices. It drops the fraction
LOSS of a host's packets, and writes the others, DELAY seconds later, to the device with the address
of the receiver. It uses only the addresses in a packet: the kernel handles checksums, sizes and
retransmissions. Its random numbers are the same in each run.

It answers each request with a line: the number of packets that it has dropped by chance.

    cut NUMBER     from now on, drop all packets from and to the host
    lost           only answer

It also writes a line when the devices exist. When its input ends, it ends and removes its devices.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from itertools import count

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LONGEST = 65535  # bytes of a packet
_IP_SOURCE_END = 16
_IP_HEADER = 20  # bytes, without options
_IP_VERSION = 4


class Port:
    """The device of a host.

    Args:
        number: the number of the host.
        address: the address of the host.
        delay: the seconds until a packet from the host arrives.
        loss: the fraction of the host's packets that do not arrive.
    """

    def __init__(self, number: int, address: str, delay: float, loss: float) -> None:
        self.address, self.delay, self.loss = socket.inet_aton(address), delay, loss
        self.is_cut = False
        self.descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = f"port{number}".encode()
        fcntl.ioctl(
            self.descriptor, _TUNSETIFF, struct.pack("16sH22x", name, _IFF_TUN | _IFF_NO_PI)
        )


class Relay:
    """Hands packets from device to device."""

    def __init__(self, ports: list[Port]) -> None:
        self._ports = ports
        self._by_address = {port.address: port for port in ports}
        self._chance = random.Random(0)
        self._numbers = count()  # packets that are due at one time keep their order
        self._due: list[tuple[float, int, Port, bytes]] = []
        self._lost = 0

    def run(self) -> None:
        """Relay until the input ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            for port in self._ports:
                selector.register(port.descriptor, selectors.EVENT_READ, port)
            print("ready", flush=True)
            while True:
                wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
                for key, _ in selector.select(wait):
                    if key.data is not None:
                        self._take(key.data)
                    elif not self._answer(sys.stdin.readline().split()):
                        return
                self._hand_over()

    def _take(self, sender: Port) -> None:
        """Read a packet that a host has sent."""
        packet = os.read(sender.descriptor, _LONGEST)
        if len(packet) < _IP_HEADER or packet[0] >> 4 != _IP_VERSION:
            return  # hosts also send IPv6 packets, to find routers
        receiver = self._by_address.get(packet[_IP_SOURCE_END:_IP_HEADER])
        if receiver is None or sender.is_cut or receiver.is_cut:
            return
        if self._chance.random() < sender.loss:
            self._lost += 1
            return
        due = time.monotonic() + sender.delay
        heapq.heappush(self._due, (due, next(self._numbers), receiver, packet))

    def _hand_over(self) -> None:
        """Write the packets that are due."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, receiver, packet = heapq.heappop(self._due)
            # The write fails if the receiver's device is down, or its queue is full.
            with suppress(OSError):
                if not receiver.is_cut:
                    os.write(receiver.descriptor, packet)

    def _answer(self, request: list[str]) -> bool:
        """Handle a request; return whether there was one."""
        if request[:1] == ["cut"]:
            self._ports[int(request[1])].is_cut = True
        print(self._lost, flush=True)
        return bool(request)


def main() -> None:
    """Relay between the hosts that the arguments name."""
    fields = [argument.split(":") for argument in sys.argv[1:]]
    Relay(
        [
            Port(number, address, float(delay), float(loss))
            for number, (address, delay, loss) in enumerate(fields)
        ]
    ).run()


if __name__ == "__main__":
    main()
