"""A service whose servers and Sentinels want to know who asks, and may speak TLS only.

Tests look into the servers through their unix sockets, which TLS is not for.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import redis

from tests.sentinels import REPLICATION, SERVICE, Sentinel, Watched
from tests.servers import RedisServer

OWNER = "peers'"
"""The password of the default user, as whom servers, Sentinels and tests talk to each other."""
USER, WORD, ASKS = "app", "s%cret&1", "s@ntinels"
"""As whom locks are taken; its password on servers and on Sentinels."""
MAY = "~* &* +@all -@admin -@dangerous +info"
"""What docs/reference/checks.md says that a user needs."""


@dataclass(frozen=True)
class Guard:
    """How one comes in: with passwords, and through TLS where there is a certificate."""

    certificate: tuple[Path, Path] | None = None
    binary: str | None = None

    def settings(self, port: int) -> dict[str, str]:
        """The settings of servers and Sentinels alike."""
        if self.certificate is None:
            return {}
        own, key = map(str, self.certificate)
        return {
            "port": "0", "tls-port": str(port), "tls-cert-file": own, "tls-key-file": key,
            "tls-ca-cert-file": own, "tls-auth-clients": "no", "tls-replication": "yes",
        }  # fmt: skip


class Guarded(RedisServer):
    """What a server and a Sentinel have in common."""

    guard: Guard

    @property
    def client(self) -> redis.Redis:
        if self._client is None:
            self._client = redis.Redis(
                unix_socket_path=f"{self.directory}/socket", password=OWNER, decode_responses=True
            )
        return self._client

    def _answers(self) -> bool:
        asked = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), asked:
            asked.settimeout(1)
            asked.connect(f"{self.directory}/socket")
            asked.sendall(f'AUTH "{OWNER}"\r\nPING\r\n'.encode())
            answer = b""
            while answer.count(b"\n") < 2 and (chunk := asked.recv(4096)):
                answer += chunk
            return answer.endswith(b"+PONG\r\n")
        return False


class GuardedServer(Guarded):
    """A server that lets nobody in without a password."""

    def __init__(self, guard: Guard, *arguments: str) -> None:
        super().__init__(*arguments, binary=guard.binary)
        self.guard = guard

    def _command(self) -> list[str]:
        settings = {"requirepass": OWNER, "masterauth": OWNER, **self.guard.settings(self.port)}
        command = super()._command()
        for name, value in settings.items():
            command += [f"--{name}", value]
        return [*command, "--user", USER, "on", f">{WORD}", *MAY.split()]


class GuardedSentinel(Guarded, Sentinel):
    """A Sentinel that lets nobody in without a password."""

    def __init__(self, guard: Guard, number: int, down_after_s: float) -> None:
        super().__init__(number, down_after_s, binary=guard.binary)
        self.guard = guard

    def _lines(self) -> list[str]:
        settings = {"requirepass": OWNER, **self.guard.settings(self.port)}
        return [
            *super()._lines(),
            *(f'{name} "{value}"' for name, value in settings.items()),
            f"unixsocket {self.directory}/socket",
            f'sentinel auth-pass {SERVICE} "{OWNER}"',
            f'sentinel sentinel-pass "{OWNER}"',
            f"user {USER} on >{ASKS} -@all +sentinel",
        ]


class GuardedService(Watched):
    """A service of such servers and Sentinels."""

    def __init__(self, guard: Guard, **options: Any) -> None:
        self.guard = guard
        super().__init__(**options)

    def _make_server(self) -> RedisServer:
        return GuardedServer(self.guard, *REPLICATION)

    def _make_sentinel(self, number: int, down_after_s: float) -> Sentinel:
        return GuardedSentinel(self.guard, number, down_after_s)

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """Where the Sentinels are."""
        return [("127.0.0.1", each.port) for each in self.sentinels]

    def address(self, word: str = WORD, asks: str = ASKS, **more: str) -> str:
        """Return the address as somebody would write it who knows these passwords."""
        query = {"sentinel_username": USER, "sentinel_password": asks, **more}
        scheme = "redis+sentinel"
        if self.guard.certificate:
            scheme = "rediss+sentinel"
            query.setdefault("ssl_ca_certs", str(self.guard.certificate[0]))
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        query = {key: value for key, value in query.items() if value}
        login = f"{USER}:{quote(word, safe='')}@" if word else ""
        return f"{scheme}://{login}{hosts}/{SERVICE}/0?{urlencode(query)}"

    @property
    def url(self) -> str:
        return self.address()
