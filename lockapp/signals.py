"""Django signals for what happens to locks in this process.

Invariant: a receiver can't change a lock's outcome. What it raises is logged (by Django, to
``django.dispatch``) and goes no further; but a soft time limit that strikes in it ends the task.

========================  =================================================================
``lock_acquired``         a lease was granted: ``lease``
``lock_released``         it was given back: ``lease``
``lock_contended``        somebody else holds it, and waiting did not help: ``lock``
``task_turned_away``      a task's body does not run here: ``run``, with ``task``, ``task_id`` and
                          ``outcome`` (see :class:`lockapp.celery.turned.TurnedAway`)
``lease_lost``            it ended without being released: ``lease`` (see ``lease.lost_reason``)
``lock_forced``           somebody here took it away from its holder: ``forced``, with ``name``,
                          ``fence``, ``actor`` and ``reason``
``lock_degraded``         a body runs although the engine could not be asked: ``lease`` (see
                          ``lease.degraded``)
``engine_unavailable``    the engine has stopped answering: ``outage``, with ``alias``, ``reason``
                          and ``seconds``
``engine_restored``       it answers again: ``outage``
========================  =================================================================

Each is sent with ``sender`` (the engine's class), ``alias``, ``name`` (the lock's, unless it is
about an engine) and what the table says. They tell of *this* process only; the audit log tells of
all of them.

Receivers are called in the middle of an acquisition or a release, ``lease_lost`` mostly in the
watchdog's thread, which renews every other lease of the process: be quick, and give longer work to
a task. They must be plain functions: in an event loop there is nobody to wait for a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.dispatch import Signal

from lockapp.core.interruption import is_interruption


class LockSignal(Signal):
    """A signal for plain functions only."""

    def connect(
        self,
        receiver: Callable[..., Any],
        sender: object = None,
        weak: bool = True,
        dispatch_uid: Hashable | None = None,
    ) -> None:
        """See Signal.connect().

        Raises:
            TypeError: the receiver is a coroutine function.
        """
        if iscoroutinefunction(receiver):
            raise TypeError(
                "a lock signal's receiver must be a plain function, since it is called in the "
                "middle of an acquisition; let it start a task for what has to be awaited"
            )
        super().connect(receiver, sender=sender, weak=weak, dispatch_uid=dispatch_uid)


lock_acquired = LockSignal()
lock_released = LockSignal()
lock_contended = LockSignal()
task_turned_away = LockSignal()
lease_lost = LockSignal()
lock_forced = LockSignal()
lock_degraded = LockSignal()
engine_unavailable = LockSignal()
engine_restored = LockSignal()

_BY_KIND = {
    "acquired": (lock_acquired, "lease"),
    "released": (lock_released, "lease"),
    "lost": (lease_lost, "lease"),
    "contended": (lock_contended, "lock"),
    "turned_away": (task_turned_away, "run"),
    "forced": (lock_forced, "forced"),
    "degraded": (lock_degraded, "lease"),
    "unavailable": (engine_unavailable, "outage"),
    "restored": (engine_restored, "outage"),
}


def observer_for(engine_class: type, alias: str) -> Callable[[str, Any], None]:
    """Return the observer that sends the signals of one engine."""

    def observe(kind: str, subject: Any) -> None:
        signal, argument = _BY_KIND[kind]
        if signal.receivers:  # nobody listens, in most processes: cost nothing then
            about = {argument: subject}
            if argument != "outage":
                about["name"] = subject.name
            outcomes = [it for _, it in signal.send_robust(engine_class, alias=alias, **about)]
            struck = next(filter(is_interruption, outcomes), None)
            if struck is not None:
                try:
                    # Its traceback, which Django has logged, refers to what refers to it.
                    raise struck.with_traceback(None)
                finally:
                    del struck, outcomes

    return observe
