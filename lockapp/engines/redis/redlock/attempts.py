"""What a process knows of its own tokens, and the log of what became of them.

The nodes could not tell: each has its own part of a story, in its own order. So what a process
acquires, releases, loses or does to others' leases is recorded here.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time

from lockapp.core.options import EngineOptions
from lockapp.core.values import Degraded, LockSpec
from lockapp.engines.process_log import SharedLog
from lockapp.engines.redis.redlock.votes import Attempt

MARK = "lease"
"""The word of a holder's description under which its mark stands."""
KEPT_S = 60.0
"""So long a token that got nothing is remembered, if nobody gives it up."""


def mark_of(token: str) -> str:
    """Return what tells a token's lease from others and does not give the token away."""
    return hashlib.blake2b(token.encode(), digest_size=6).hexdigest()


def marked(description: str, token: str, fence: int) -> str:
    """Return a description with the mark in it, and the fence that its holder will call it by.

    A fence of 0: the nodes agree on one (two phases).
    """
    rest = description[1:]
    return f'{{"{MARK}":"{mark_of(token)} {fence}"{"" if rest == "}" else ","}{rest}'


class Attempts:
    """The tokens of one engine in one process. Safe to share between threads and event loops."""

    def __init__(self, log: SharedLog, options: EngineOptions) -> None:
        self.log = log
        self._cap = options.event_cap
        # Reentrant: a signal handler that takes a lock may strike a thread that is in here.
        self._guard = threading.RLock()
        self._known: dict[str, Attempt] = {}
        self._fence = 0
        self._ending: dict[str, Attempt] = {}  # by name: those whose release is under way
        self._earliest = float("inf")  # none of them ends before

    def next_fence(self) -> int:
        """Return a larger number than ever before in this process: microseconds, about."""
        with self._guard:
            self._fence = max(self._fence + 1, time.time_ns() // 1000)
            return self._fence

    def get(self, token: str) -> Attempt | None:
        """Return what is known of a token."""
        return self._known.get(token)

    def begin(self, token: str, spec: LockSpec, now: float) -> Attempt:
        """Return what is known of a token that asks for a lock."""
        attempt = self._known.get(token)
        if attempt is None:
            attempt = self._known[token] = Attempt(token, spec, now)
        if not attempt.granted_ms:
            self._lasts(attempt, now + KEPT_S)
        return attempt

    def _lasts(self, attempt: Attempt, until: float) -> None:
        attempt.until = until
        self._earliest = min(self._earliest, until)

    def granted(
        self, attempt: Attempt, sent_at: float, now: float, life_ms: int, fence: int
    ) -> None:
        """Take note that it holds; first of what must have ended before, or it would not."""
        self.flush(now)
        before = self._ending.get(attempt.spec.name)
        if before is not None and before is not attempt:
            self.ended(before.token, "released", now)
        self._lasts(attempt, sent_at + life_ms / 1000)
        attempt.waits = False
        if attempt.granted_ms:
            return  # asked again: its reply was lost, or too late
        attempt.granted_at, attempt.granted_ms = sent_at, int(time.time() * 1000)
        attempt.fence = fence
        spec = attempt.spec
        self.record(
            "acquired", spec.name, fence,
            waited_ms=str(round((sent_at - attempt.asked_at) * 1000)), ttl_ms=str(spec.ttl_ms),
            weight=str(spec.weight), limit=str(spec.limit), max_hold_ms=str(spec.max_hold_ms),
            description=attempt.description,
        )  # fmt: skip

    def waiting(self, name: str) -> list[Attempt]:
        """Return those of this process that will ask for a lock again, the oldest first."""
        found = [it for it in list(self._known.values()) if it.waits and it.spec.name == name]
        return sorted(found, key=lambda it: it.asked_at)

    def prolonged(self, token: str, sent_at: float, life_ms: int) -> None:
        """Take note of a renewal."""
        attempt = self._known.get(token)
        if attempt is not None:
            attempt.until = max(attempt.until, sent_at + life_ms / 1000)

    def ending(self, token: str) -> Attempt | None:
        """Take note that it is being given back; return what is known of it."""
        attempt = self._known.get(token)
        if attempt is not None:
            attempt.over = True
            if attempt.granted_ms:
                self._ending[attempt.spec.name] = attempt
        return attempt

    def ended(self, token: str, kind: str, now: float, why: str = "") -> None:
        """Forget a token; if it held, record how that ended. An empty ``kind`` records nothing."""
        with self._guard:
            attempt = self._known.pop(token, None)
            if attempt is not None and self._ending.get(attempt.spec.name) is attempt:
                del self._ending[attempt.spec.name]
        if attempt is not None and attempt.granted_ms and kind:
            self._end(attempt, kind, now, why)

    def flush(self, now: float) -> None:
        """Record what has run out."""
        if now < self._earliest:
            return
        with self._guard:
            known = list(self._known.values())
            self._earliest = min((it.until for it in known if it.until > now), default=float("inf"))
        for attempt in known:
            if attempt.until > now:
                continue
            held_ms = (attempt.until - attempt.granted_at) * 1000
            at_max_hold = 0 < attempt.spec.max_hold_ms <= held_ms + 1
            self.ended(attempt.token, "expired", now, "max_hold" if at_max_hold else "")

    def _end(self, attempt: Attempt, kind: str, now: float, why: str) -> None:
        held_ms = str(max(round((now - attempt.granted_at) * 1000), 0))
        self.record(kind, attempt.spec.name, attempt.fence, held_ms=held_ms, why=why)

    def taken(self, kind: str, name: str, mark: str, fence: int, held_ms: int, note: str) -> None:
        """Record what was done to a lease, of whatever process, on somebody's word.

        Its fence is the one that its holder has, where that is known.
        """
        known = [it for it in list(self._known.values()) if it.spec.name == name]
        for attempt in known:
            if mark_of(attempt.token) == mark and attempt.granted_ms:
                fence = attempt.fence
                if kind != "revoked":
                    self.ended(attempt.token, "", 0.0)
        said = {key: str(value) for key, value in json.loads(note).items()}
        self.record(kind, name, fence, held_ms=str(held_ms), **said)

    def degraded(self, report: Degraded) -> None:
        """Record a run without a lock."""
        self.record(
            "degraded", report.name, 0,
            mode=report.mode, at_ms=str(report.at_ms), reason=report.reason,
            description=report.description,
        )  # fmt: skip

    def record(self, kind: str, name: str, fence: int, **detail: str) -> None:
        """Record one transition."""
        self.log.add(kind, name, fence, detail, self._cap)
