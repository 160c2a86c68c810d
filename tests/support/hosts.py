"""Separate hosts on this machine: network namespaces, with delay and loss between them.

The addresses are of a private range, and exist in these namespaces only; no interface leads out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.links import Link, Network, NoDelayError, address_of, call, connected

_FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_NO_RIGHT = "no right to make network namespaces, or no iproute2"
# A port without a listener refuses the connection after the time of one round trip.
_CONNECT = """
import errno, socket, sys, time
def seconds():
    start = time.perf_counter()
    with socket.socket() as one:
        assert one.connect_ex((sys.argv[1], 9)) == errno.ECONNREFUSED
    return time.perf_counter() - start
print(min(seconds() for _ in range(5)))
"""


class Hosts:
    """Network namespaces: one for each host, and one for the device that connects the hosts.

    Args:
        links: the link of each host.

    Attributes:
        names: the names of the hosts' namespaces.
    """

    def __init__(self, links: list[Link]) -> None:
        self.names = [f"fxp{os.getpid()}h{number}" for number in range(len(links))]
        self._made: list[str] = []
        self._network: Network | None = None
        try:
            self._make(f"fxp{os.getpid()}m", links)
        except BaseException:
            self.remove()
            raise

    def _make(self, middle: str, links: list[Link]) -> None:
        for name in (middle, *self.names):
            call("ip", "netns", "add", name)
            self._made.append(name)
        self._network = connected(middle, self.names, links)
        for number, name in enumerate(self.names):
            call("ip", "-n", name, "address", "add", f"{address_of(number)}/24", "dev", "eth0")
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", "eth0", "up")

    @property
    def network(self) -> Network:
        """The device that connects the hosts."""
        assert self._network is not None
        return self._network

    def round_trip(self, one: int, other: int) -> float:
        """Return the smallest number of seconds of a round trip between two hosts."""
        command = ("ip", "netns", "exec", self.names[one], sys.executable, "-c", _CONNECT)
        return float(call(*command, address_of(other)))

    def remove(self) -> None:
        """Remove the hosts with their links. Processes on them lose their network."""
        if self._network is not None:
            self._network.remove()
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False)


def enter(namespace: str) -> None:
    """Move the calling thread, and the threads that it starts, onto a host."""
    descriptor = os.open(_FOLDER / namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)


@contextmanager
def hosts(links: list[Link]) -> Iterator[Hosts]:
    """Create hosts for a block; skip the test if this machine cannot create them."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip(_NO_RIGHT)
    try:
        made = Hosts(links)
    except NoDelayError as error:
        pytest.skip(str(error))
    except OSError as error:
        if "Operation not permitted" in str(error):
            pytest.skip(_NO_RIGHT)
        raise
    try:
        yield made
    finally:
        made.remove()
