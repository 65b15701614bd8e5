"""A worker's way to the store, which can be cut: by the kernel's packet filter, else by a proxy.

Where the machine allows it, the worker runs in a network namespace of its own and packets are
dropped or rejected there, in one direction or both. Elsewhere a proxy holds the bytes back.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Protocol

from tests.support.cluster import Cluster
from tests.support.proxy import SILENCE, FaultProxy, Weather


class Way(StrEnum):
    """How the two are cut off from each other."""

    DEAF = "the worker is heard and hears nothing"
    REFUSED = "what the worker sends is rejected"
    SILENT = "nothing passes either way"
    MUTE = "the worker hears and is not heard"


_RULES = {
    Way.SILENT: ("-A INPUT -j DROP", "-A OUTPUT -j DROP"),
    Way.DEAF: ("-A INPUT -j DROP",),
    Way.MUTE: ("-A OUTPUT -j DROP",),
    Way.REFUSED: ("-A OUTPUT -p tcp -j REJECT --reject-with tcp-reset",),
}
_WEATHERS = {
    Way.SILENT: SILENCE,
    Way.DEAF: Weather(replies_pass=False),
    Way.MUTE: Weather(requests_pass=False),
}


class Link(Protocol):
    """A worker's way to the store."""

    @property
    def url(self) -> str:
        """Where the worker finds its store."""
        ...

    @property
    def launcher(self) -> Sequence[str]:
        """The command that starts the worker at its end of the way."""
        ...

    def cut(self, way: Way) -> None:
        """Let it be cut from now on."""
        ...

    def heal(self) -> None:
        """Let everything pass again."""
        ...

    def close(self) -> None:
        """Take the way down; the worker must have ended."""
        ...


def make_link(cluster: Cluster, chance: Random) -> Link:
    """Return a way to a cluster's store, by namespaces where this process may make them."""
    if NamespaceLink.is_possible():
        return NamespaceLink(cluster)
    return ProxyLink(cluster, chance)


class NamespaceLink:
    """A network namespace with a cable to this one, and its packet filter."""

    def __init__(self, cluster: Cluster) -> None:
        self._name = f"pm{os.getpid()}"
        here, there = f"{self._name}h", f"{self._name}t"
        # A net of four addresses for each process id.
        third, fourth = divmod(os.getpid() % 16_384, 64)
        net = f"10.213.{third}."
        self._address = f"{net}{fourth * 4 + 1}"
        self._port = cluster.server.port
        _run(f"ip netns add {self._name}")
        _run(f"ip link add {here} type veth peer name {there} netns {self._name}")
        _run(f"ip addr add {self._address}/30 dev {here}")
        _run(f"ip link set {here} up")
        _run(f"ip -n {self._name} addr add {net}{fourth * 4 + 2}/30 dev {there}")
        _run(f"ip -n {self._name} link set {there} up")
        _run(f"ip -n {self._name} link set lo up")
        # Nobody but the namespace can reach this address.
        cluster.client.config_set("protected-mode", "no")
        cluster.client.config_set("bind", f"127.0.0.1 {self._address}")

    @staticmethod
    def is_possible() -> bool:
        """Say whether namespaces and filters can be made here, by making one of each."""
        if not shutil.which("ip") or not shutil.which("iptables"):
            return False
        probe = f"pmprobe{os.getpid()}"
        if not _succeeds(f"ip netns add {probe}"):
            return False
        filters = _succeeds(f"ip netns exec {probe} iptables -A OUTPUT -p tcp -j REJECT")
        has_cable = _succeeds(f"ip link add {probe} type veth peer name {probe}t netns {probe}")
        _run(f"ip netns del {probe}")
        return filters and has_cable

    @property
    def url(self) -> str:
        return f"redis://{self._address}:{self._port}/0"

    @property
    def launcher(self) -> Sequence[str]:
        ip = shutil.which("ip")
        assert ip is not None, "it was there a moment ago"
        return (ip, "netns", "exec", self._name)

    def cut(self, way: Way) -> None:
        for rule in _RULES[way]:
            _run(f"ip netns exec {self._name} iptables {rule}")

    def heal(self) -> None:
        _run(f"ip netns exec {self._name} iptables -F")

    def close(self) -> None:
        _run(f"ip netns del {self._name}")


class ProxyLink:
    """A proxy in front of the store. Rejected is refused here, and what is open is reset."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self._proxy = FaultProxy(cluster.server.port, chance)
        self._is_refusing = False
        self._proxy.start()

    @property
    def url(self) -> str:
        return self._proxy.url

    @property
    def launcher(self) -> Sequence[str]:
        return ()

    def cut(self, way: Way) -> None:
        if way is Way.REFUSED:
            self._is_refusing = True
            self._proxy.refuse()
        else:
            self._proxy.set_weather(_WEATHERS[way])

    def heal(self) -> None:
        self._proxy.set_weather(Weather())
        if self._is_refusing:
            self._is_refusing = False
            self._proxy.accept()

    def close(self) -> None:
        self._proxy.stop()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def _succeeds(command: str) -> bool:
    return subprocess.run(command.split(), check=False, capture_output=True).returncode == 0
