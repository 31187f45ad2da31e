"""The notice channel of a process: one subscription, told by the scripts what they did.

Publishing is part of the step that forces, abandons or revokes. What was published before the
server has confirmed the subscription is missed; hence the confirmation is a notice, too, by which
the watchdog knows from when on it hears. What is lost the next renewal tells.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions as redis_errors

from lockapp.core.ports import EVERY_LOCK
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.errors import transport_error
from lockapp.engines.redis.wire import socket_of


def names_in(reply: Any) -> list[str]:
    """Return the lock's name if this is a message, EVERY_LOCK for a confirmation."""
    if isinstance(reply, list) and reply and reply[0] == b"message":
        return [reply[2].decode("utf-8", "replace")]
    if isinstance(reply, list) and reply and reply[0] == b"subscribe":
        return [EVERY_LOCK]
    return []


class SyncNotices:
    """A subscription as :class:`~lockapp.core.ports.ThreadNotices`."""

    def __init__(self, connection: Any, address: Address, alias: str) -> None:
        self._connection = connection
        self._address = address
        self._alias = alias

    @property
    def stale(self) -> bool:
        """See Notices."""
        return self._address.left(self._connection)

    def fileno(self) -> int:
        """See ThreadNotices."""
        socket = socket_of(self._connection)
        return -1 if socket is None else int(socket.fileno())

    def read(self) -> list[str]:
        """See ThreadNotices."""
        names: list[str] = []
        try:
            while self._connection.can_read(timeout=0):
                names += names_in(self._connection.read_response(disable_decoding=True))
        except (redis_errors.RedisError, OSError) as error:
            raise transport_error(error, self._alias, sent=True) from error
        return names

    async def close(self) -> None:
        """See Notices."""
        self._connection.disconnect()


class AsyncNotices:
    """A subscription as :class:`~lockapp.core.ports.TaskNotices`."""

    def __init__(self, connection: Any, address: Address, alias: str) -> None:
        self._connection = connection
        self._address = address
        self._alias = alias

    @property
    def stale(self) -> bool:
        """See Notices."""
        return self._address.left(self._connection)

    async def next(self) -> list[str]:
        """See TaskNotices."""
        try:
            return names_in(await self._connection.read_response(disable_decoding=True))
        except (redis_errors.RedisError, OSError, AttributeError) as error:
            raise transport_error(error, self._alias, sent=True) from error

    async def close(self) -> None:
        """See Notices."""
        await self._connection.disconnect(nowait=True)
