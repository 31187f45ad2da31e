"""Every number that governs an engine, with its default, in one frozen dataclass.

Users write seconds under short names (``OPTIONS = {"ttl": 30}``); inside, each name carries its
unit. Unknown keys are refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from lockapp.core.duration import to_ms

OnUnavailable = Literal["raise", "local", "open"]
"""What to do when the engine can't be asked: raise, lock within the process, or run unlocked."""
Release = Literal["after_transaction", "now"]
"""Whether a release inside an open database transaction is put off until that has ended."""

PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")


class UnfitOptions(ValueError):
    """Options that make sense, but not together, or not for this engine."""


class UnfitLocation(ValueError):
    """A location that can be read and not be used. The message says why, and shows no password."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of one engine; what users may set stands in the comments (``OPTIONS`` key)."""

    prefix: str = "lockapp"  # "prefix": starts every key; two sites on one server need two
    ttl_ms: int = 30_000  # "ttl": life of a lease between renewals
    wait_ms: int = 10_000  # "wait": how long acquire waits
    view_wait_ms: int = 0  # "view_wait": the same for view locks
    max_hold_ms: int = 3_600_000  # "max_hold": renewal stops after this long; None for never
    on_unavailable: OnUnavailable = "raise"  # "on_unavailable": what locks do then, by default
    single_process: bool = False  # "single_process": only one runs, so locks in memory will do
    fence_epoch: int = 1  # "fence_epoch": orders fencing tokens of two engines; the later is higher
    claim_window_ms: int = 3_000  # "claim_window": first deadline of a handed-off lease
    slice_ms: int = 5_000  # "waiting_slice": a waiter shows that it lives at least this often
    stagger_ms: int = 10  # "stagger": per queue position, so that waiters do not ask at once
    stagger_max_ms: int = 500  # "stagger_max"
    tombstone_ms: int = 60_000  # "tombstone": how long a late request of an undone token is refused
    safety_ms: int = 86_400_000  # "safety_expiry": keys expire by themselves this long after use
    connect_timeout_ms: int = 1_000  # "connect_timeout"
    command_timeout_ms: int = 2_000  # "command_timeout"
    session_timeout_ms: int = 40_000  # "session_timeout": ZooKeeper frees a dead process's locks
    event_cap: int = 100_000  # "event_cap": entries kept in the event stream, about
    sweep_limit: int = 20  # "sweep_limit": expired holders reclaimed per renewal call
    renew_batch: int = 200  # "renew_batch": leases renewed in one call
    min_replicas_acked: int = 0  # "min_replicas_acked": replicas that must have a lease
    two_phase_fencing: bool = False  # "two_phase_fencing": Redlock's fences grow; a round trip more

    @property
    def seen_ms(self) -> int:
        """How long a waiter counts as alive after it was heard of: two slices."""
        return 2 * self.slice_ms

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> EngineOptions:
        """Read a user's ``OPTIONS``.

        Raises:
            ValueError, TypeError: an unknown key, or a value that makes no sense; both name it.
        """
        known = {field.name.removesuffix("_ms"): field.name for field in fields(cls)}
        known |= {"waiting_slice": "slice_ms", "safety_expiry": "safety_ms"}
        for internal in ("slice", "safety"):
            del known[internal]
        values: dict[str, object] = {}
        for key, value in given.items():
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {sorted(known)}"
                raise ValueError(f"unknown option {key!r}{hint}")
            name = known[key]
            if name == "prefix":
                values[name] = _prefix(value)
            elif name == "on_unavailable":
                values[name] = on_unavailable_option(value, "option 'on_unavailable'")
            elif name in ("single_process", "two_phase_fencing"):
                values[name] = _flag(value, key)
            elif not name.endswith("_ms"):
                values[name] = _count(value, key, 0 if name == "min_replicas_acked" else 1)
            elif name == "max_hold_ms" and value is None:
                values[name] = 0
            else:
                zero = name in ("wait_ms", "view_wait_ms", "stagger_ms", "stagger_max_ms")
                values[name] = to_ms(value, f"option {key!r}", zero=zero)
        return cls(**values)  # type: ignore[arg-type]


def on_unavailable_option(value: object, what: str = "on_unavailable") -> OnUnavailable:
    """Return a declared ``on_unavailable`` if it is one.

    Raises:
        ValueError: it is not; the message says what is.
    """
    if value not in get_args(OnUnavailable):
        allowed = ", ".join(map(repr, get_args(OnUnavailable)))
        raise ValueError(f"{what} must be one of {allowed}, not {value!r}")
    return value  # type: ignore[return-value]


def release_option(value: object) -> Release:
    """Return a declared ``release`` if it is one.

    Raises:
        ValueError: it is not; the message says what is.
    """
    if value not in get_args(Release):
        allowed = ", ".join(map(repr, get_args(Release)))
        raise ValueError(f"release must be one of {allowed}, not {value!r}")
    return value  # type: ignore[return-value]


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not PREFIX.fullmatch(value):
        raise ValueError(
            f"option 'prefix' must be 1 to 64 letters, digits or any of '_.:/-', not {value!r}"
        )
    return value


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"option {key!r} must be True or False, not {value!r}")
    return value


def _count(value: object, key: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"option {key!r} must be a whole number of {least} or more, not {value!r}")
    return value
