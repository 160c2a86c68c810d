"""Hosts of their own on this machine: network namespaces on one bridge, with delay and loss.

The addresses are of a private range, and exist in these namespaces only; no interface leads out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Hosts:
    """Namespaces, one for each host and one with the bridge between them.

    Args:
        size: the number of hosts.
        netem: what `tc qdisc add ... netem` is given for each link; empty: nothing.
    """

    def __init__(self, size: int, netem: str = "") -> None:
        self.names = [f"fxp{os.getpid()}h{number}" for number in range(size)]
        self._middle = f"fxp{os.getpid()}m"
        self._running: list[subprocess.Popen[bytes]] = []
        self._made: list[str] = []
        try:
            self._make(netem)
        except BaseException:
            self.remove()
            raise

    def _make(self, netem: str) -> None:
        for name in (self._middle, *self.names):
            ip("netns", "add", name)
            self._made.append(name)
        self._in(self._middle, "ip", "link", "add", "bridge", "type", "bridge")
        self._in(self._middle, "ip", "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            port = f"port{number}"
            link = ("type", "veth", "peer", "name", port, "netns", self._middle)
            self._in(name, "ip", "link", "add", "eth0", *link)
            self._in(self._middle, "ip", "link", "set", port, "master", "bridge", "up")
            self._in(name, "ip", "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            self._in(name, "ip", "link", "set", "lo", "up")
            self._in(name, "ip", "link", "set", "eth0", "up")
            if netem:
                command = ("tc", "qdisc", "add", "dev", "eth0", "root", "netem")
                self._in(name, *command, *netem.split())

    @staticmethod
    def _in(namespace: str, *command: str) -> None:
        ip("netns", "exec", namespace, *command)

    @staticmethod
    def address(number: int) -> str:
        """Return the address of a host."""
        return f"10.77.0.{number + 1}"

    def start(self, number: int, *arguments: str) -> subprocess.Popen[bytes]:
        """Run this Python on a host, in a session of its own."""
        run = subprocess.Popen(
            ["ip", "netns", "exec", self.names[number], sys.executable, "-W", "ignore", *arguments],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            start_new_session=True,
        )
        self._running.append(run)
        return run

    def cut(self, number: int) -> None:
        """Take the link of a host down."""
        self._in(self._middle, "ip", "link", "set", f"port{number}", "down")

    def remove(self) -> None:
        """End what runs on the hosts, and remove them with their links."""
        for run in self._running:
            run.kill()
            run.wait()
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False)


def ip(*arguments: str) -> None:
    """Call `ip`."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def hosts(size: int, netem: str = "") -> Iterator[Hosts]:
    """Return a block with hosts; the test is skipped where they cannot be made."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("no right to make network namespaces, or no iproute2")
    try:
        made = Hosts(size, netem)
    except OSError as error:
        if netem and "qdisc" in str(error):
            pytest.skip("the kernel has no netem")
        if "Operation not permitted" in str(error):
            pytest.skip("no right to make network namespaces, or no iproute2")
        raise
    try:
        yield made
    finally:
        made.remove()
