"""Links between network namespaces: a bridge of the kernel, or a relay where it has no netem."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
TUN = Path("/dev/net/tun")


@dataclass(frozen=True)
class Link:
    """The delay and the loss of the packets that a host sends.

    Attributes:
        delay: the seconds until a packet arrives.
        loss: the fraction of the packets that do not arrive.
    """

    delay: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        return f"{self.delay:g} s, {self.loss:g} lost"


class NoDelayError(OSError):
    """This machine cannot delay packets."""


class Network(Protocol):
    """The links of hosts. A new network has a device eth0 for each host; the device is down."""

    def cut(self, number: int) -> None:
        """Lose all packets from and to a host from now on."""

    def lost(self) -> int:
        """Return how many packets were lost by chance."""

    def remove(self) -> None:
        """Stop the process that carries packets, if there is one."""


class Bridge:
    """A bridge of the kernel; its netem delays and loses packets.

    Args:
        middle: the namespace of the bridge.
        hosts: the namespaces of the hosts.
        links: the link of each host.
    """

    def __init__(self, middle: str, hosts: list[str], links: list[Link]) -> None:
        self._middle, self._hosts = middle, hosts
        call("ip", "-n", middle, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", middle, "link", "set", "bridge", "up")
        for number, (name, link) in enumerate(zip(hosts, links, strict=True)):
            pair = ("type", "veth", "peer", "name", f"port{number}", "netns", middle)
            call("ip", "-n", name, "link", "add", "eth0", *pair)
            call("ip", "-n", middle, "link", "set", f"port{number}", "master", "bridge", "up")
            if link != Link():
                how = ("delay", f"{link.delay * 1e3:g}ms", "loss", f"{link.loss * 100:g}%")
                call("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "netem", *how)

    def cut(self, number: int) -> None:
        """Take the link of a host down."""
        call("ip", "-n", self._middle, "link", "set", f"port{number}", "down")

    def lost(self) -> int:
        """Return how many packets netem has dropped."""
        texts = [
            call("tc", "-s", "-n", name, "qdisc", "show", "dev", "eth0") for name in self._hosts
        ]
        return sum(int(each) for text in texts for each in re.findall(r"dropped (\d+)", text))

    def remove(self) -> None:
        """Do nothing: the bridge is removed with its namespace."""


class Relayed:
    """A process that delays and loses packets, see `tests/support/relay.py`.

    Args:
        middle: the namespace of the process.
        hosts: the namespaces of the hosts.
        links: the link of each host.
    """

    def __init__(self, middle: str, hosts: list[str], links: list[Link]) -> None:
        arguments = [
            f"{address_of(number)}:{link.delay}:{link.loss}" for number, link in enumerate(links)
        ]
        command = ["ip", "netns", "exec", middle, sys.executable, "-m", "tests.support.relay"]
        self._process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._line()
            for number, name in enumerate(hosts):
                place = ("netns", name, "name", "eth0")
                call("ip", "-n", middle, "link", "set", f"port{number}", *place)
        except BaseException:
            self.remove()
            raise

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the relay has ended")
        return line

    def _ask(self, request: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return int(self._line())

    def cut(self, number: int) -> None:
        """Let the relay lose all packets from and to a host."""
        self._ask(f"cut {number}")

    def lost(self) -> int:
        """Return how many packets the relay has lost by chance."""
        return self._ask("lost")

    def remove(self) -> None:
        """End the relay, and with it its devices."""
        self._process.kill()
        self._process.communicate()


def connected(middle: str, hosts: list[str], links: list[Link]) -> Network:
    """Connect the namespaces of hosts, which must exist.

    Raises:
        NoDelayError: a link has delay or loss, and the machine has neither netem nor TUN devices.
        OSError: a command fails.
    """
    if not any(link != Link() for link in links) or _has_netem(middle):
        return Bridge(middle, hosts, links)
    if not TUN.exists():
        raise NoDelayError("neither netem nor TUN devices")
    return Relayed(middle, hosts, links)


def _has_netem(middle: str) -> bool:
    try:  # nothing uses this device
        call("tc", "-n", middle, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except OSError:
        return False
    return True


def address_of(number: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{number + 1}"


def call(*command: str) -> str:
    """Run a command, and return its output.

    Raises:
        OSError: the command fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
