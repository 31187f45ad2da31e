"""Where a ZooKeeper ensemble is and who we are there: ``zk://user:password@h1:2181,h2/chroot``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 2181
HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Address:
    """The servers, the chroot, and a digest identity. Contains secrets: never shown."""

    hosts: str  # as kazoo takes them: host:port,host:port
    chroot: str = ""
    digest: str = field(default="", repr=False)  # user:password; nodes are then only this user's

    def __str__(self) -> str:
        """Name the servers and the chroot without secrets."""
        return f"{self.hosts}{self.chroot}"

    @property
    def place(self) -> tuple[object, ...]:
        """Which part of which ensemble it is, as far as the text tells; to be compared."""
        return "zookeeper", frozenset(self.hosts.lower().split(",")), self.chroot

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Read ``zk://``; special characters in user, password and chroot are percent-encoded.

        Raises:
            ValueError: not such an address.
        """
        parts = urlsplit(url)
        if parts.scheme != "zk":
            raise ValueError("a ZooKeeper address starts with zk://")
        if parts.query or parts.fragment:
            raise ValueError("a ZooKeeper address has no query and no fragment")
        identity, _, servers = parts.netloc.rpartition("@")
        hosts = servers.split(",")
        for host in hosts:
            if not HOST.fullmatch(host):
                raise ValueError("a ZooKeeper address names its servers as host:port,host:port")
        if identity and ":" not in identity:
            raise ValueError("a user of ZooKeeper's digest scheme has a password")
        return cls(
            hosts=",".join(_with_port(host) for host in hosts),
            chroot=unquote(parts.path).rstrip("/"),
            digest=unquote(identity),
        )


def _with_port(host: str) -> str:
    return host if host.rpartition(":")[2].isdigit() else f"{host}:{DEFAULT_PORT}"
