"""Judges what happened: client logs and the event stream in, faults out. Pure.

The stream is judged by `lockapp.audit.history`, as `manage.py lockapp verify` does; the logs tell
what no stream can. Faults besides those described there:

* *overlap*: two leases of one name that their holders could rely on at the same time;
* *unrecorded*: a holder that the event stream knows nothing of;
* *order*: a grant to one that queued after somebody who was still waiting, and got it later;
* *litter*: a key that is still there at the end.

Holders' times are seconds on the host's boot clock, which all its processes share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockapp.audit import history
from lockapp.audit.history import Fault
from lockapp.core.values import EventRecord


@dataclass(frozen=True)
class Stay:
    """One lease as its holder saw it: until ``end`` it worked and believed it was alone."""

    who: str
    name: str
    fence: int
    start: float
    end: float


def read_log(who: str, lines: Iterable[str]) -> list[Stay]:
    """Read a holder's log: ``enter NAME FENCE NOW VALID_UNTIL``, ``leave NAME FENCE NOW VALID_UNTIL``.

    One that never left was killed inside: it is believed until its validity when it entered. One
    that left late was frozen: it is believed until its last validity. A torn last line is no news.
    """  # noqa: E501
    stays: dict[tuple[str, int], Stay] = {}
    for line in lines:
        words = line.split()
        if not line.endswith("\n") or len(words) != 5:
            continue
        verb, name, fence = words[0], words[1], int(words[2])
        now, valid_until = float(words[3]), float(words[4])
        if verb == "enter":
            stays[name, fence] = Stay(who, name, fence, now, max(now, valid_until))
        else:
            start = stays[name, fence].start
            stays[name, fence] = Stay(who, name, fence, start, max(start, min(now, valid_until)))
    return list(stays.values())


def judge(
    stays: Sequence[Stay], events: Sequence[EventRecord], left: Sequence[str] = (), limit: int = 1
) -> list[Fault]:
    """Return every fault of a history; ``limit`` is how many may hold a name by the logs."""
    return [
        *_overlaps(stays, limit),
        *history.judge(events),
        *_unrecorded(stays, events),
        *_order(events),
        *(Fault("litter", "", key) for key in left),
    ]


def _overlaps(stays: Sequence[Stay], limit: int) -> Iterable[Fault]:
    for name, known in _by_name(stays).items():
        inside: list[Stay] = []
        for stay in sorted(known, key=lambda it: it.start):
            inside = [other for other in inside if other.end > stay.start]
            inside.append(stay)
            if len(inside) > limit:
                yield Fault("overlap", name, " and ".join(f"{it.who}:{it.fence}" for it in inside))


def _unrecorded(stays: Sequence[Stay], events: Sequence[EventRecord]) -> Iterable[Fault]:
    granted = {(event.name, event.fence) for event in events if event.kind == "acquired"}
    for stay in stays:
        if (stay.name, stay.fence) not in granted:
            yield Fault("unrecorded", stay.name, f"{stay.who}:{stay.fence}")


def _order(events: Sequence[EventRecord]) -> Iterable[Fault]:
    """In the order of grants, the moment of queueing never goes back.

    One that did not wait queued at the moment of its grant. One that was dropped from the queue
    (frozen, or of a process whose claim lapsed) counts from when it queued again.
    """
    for name, known in _by_name(events).items():
        last_ms, last_fence = 0, 0
        for event in known:
            if event.kind != "acquired":
                continue
            queued_ms = event.at_us // 1000 - int(event.detail["waited_ms"])
            if queued_ms < last_ms:
                about = f"{last_fence} passed {event.fence}, which waited {last_ms - queued_ms} ms"
                yield Fault("order", name, about)
            last_ms, last_fence = max(last_ms, queued_ms), event.fence


def _by_name(things: Iterable[Stay] | Iterable[EventRecord]) -> dict[str, list]:
    found: dict[str, list] = defaultdict(list)
    for thing in things:
        found[thing.name].append(thing)
    return found
