"""The steps of a single flight in memory: landings, and the inboxes of those who wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lockapp.core.flight import Landing

if TYPE_CHECKING:
    from lockapp.engines.memory.server import MemoryServer


class Flights:
    """Who waits for which landing. Every method is one step, under the server's guard.

    A landing is remembered for its time, and then until the next step of any flight.
    """

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._landed: dict[str, tuple[Landing, int]] = {}
        self._followers: dict[str, list[Any]] = {}

    def land(self, name: str, token: str, fence: int, outcome: str, keep_ms: int) -> bool:
        """Wake everybody who waits for this flight, or an earlier one of the name."""
        with self._server._guard:
            now_ms = self._forget()
            if token and not self._holds(name, token, now_ms):
                return False
            known = self._landed.get(name)
            if known and known[0].fence >= fence:
                return False
            landing = Landing(fence, outcome)
            self._landed[name] = landing, now_ms + keep_ms
            for inbox in self._followers.pop(name, ()):
                inbox.put(landing)
            return True

    def follow(self, name: str, since: int, inbox: Any) -> Landing | None:
        """Return a landing numbered ``since`` or later, or have the next one put into ``inbox``."""
        with self._server._guard:
            self._forget()
            known = self._landed.get(name)
            if known and known[0].fence >= since:
                return known[0]
            self._followers.setdefault(name, []).append(inbox)
            return None

    def leave(self, name: str, inbox: Any) -> None:
        """Wait no more."""
        with self._server._guard:
            waiting = self._followers.get(name, [])
            if inbox in waiting:
                waiting.remove(inbox)
                if not waiting:
                    del self._followers[name]

    def names(self) -> list[str]:
        """Return the names of which something is kept."""
        with self._server._guard:
            self._forget()
            return sorted({*self._landed, *self._followers})

    def _holds(self, name: str, token: str, now_ms: int) -> bool:
        record = self._server.records.get(name)
        holder = record.holders.get(token) if record else None
        return holder is not None and holder.deadline_ms > now_ms

    def _forget(self) -> int:
        now_ms = self._server.clock_us() // 1000
        for name in [name for name, (_, until) in self._landed.items() if until <= now_ms]:
            del self._landed[name]
        return now_ms


class FlightPort:
    """What a :class:`~lockapp.engines.memory.ports.MemoryPort` does for single flights."""

    server: MemoryServer
    make_inbox: ClassVar[Any]

    async def land(self, name: str, token: str, fence: int, outcome: str, keep_ms: int) -> bool:
        """See EnginePort."""
        return self.server.flights.land(name, token, fence, outcome, keep_ms)

    async def wait_landing(self, name: str, since: int, timeout_s: float) -> Landing | None:
        """See EnginePort."""
        flights, inbox = self.server.flights, self.make_inbox()
        try:
            landing: Landing | None = flights.follow(name, since, inbox)
            return landing or await inbox.wait(timeout_s)
        finally:
            flights.leave(name, inbox)
