"""Which metrics there are, and which signal moves which.

They tell of *this* process, as the signals do; Prometheus adds the processes up. What all of them
hold together is asked of the lock server (``manage.py lockapp list``, the admin).

Labels are bounded: ``engine`` is an alias of the settings, ``family`` the first part of a name (of
which ``FAMILIES`` are told apart in a process, the rest is ``other``), all else is a word of a
fixed list. Lock names never become labels.

Several processes behind one address (gunicorn, Celery's prefork) share their figures through the
files of ``PROMETHEUS_MULTIPROC_DIR``; prometheus-client finds out itself that it was forked.

Source of the naming rules: https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lockapp import signals
from lockapp.engines.clock import boot_clock
from lockapp.naming import family_of

if TYPE_CHECKING:
    from lockapp.lease import Lease

FAMILIES = 200
"""Families that a process tells apart. More would mean that ids are used as families."""
OTHER = "other"

WAITED = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
HELD = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400)
"""Buckets in seconds: from a loopback server to a nightly job."""

_OF_LOCK = ("engine", "family")


class Metrics:
    """The metrics of a registry; made once for each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, labels: tuple[str, ...] = _OF_LOCK) -> Counter:
            return Counter(name, what, labels, registry=registry)

        self.wait = Histogram(
            "lockapp_wait_seconds",
            "Time from the request for a lock to its grant; of those that were granted.",
            _OF_LOCK,
            buckets=WAITED,
            registry=registry,
        )
        self.hold = Histogram(
            "lockapp_hold_seconds",
            "Time from a grant to its end: released, or why it was lost.",
            (*_OF_LOCK, "outcome"),
            buckets=HELD,
            registry=registry,
        )
        self.contended = counter(
            "lockapp_contended_total", "Requests given up since somebody else held the lock."
        )
        self.lost = counter(
            "lockapp_leases_lost_total",
            "Leases that ended without being released, by reason.",
            (*_OF_LOCK, "reason"),
        )
        self.forced = counter("lockapp_forced_total", "Locks taken away from their holders here.")
        self.turned_away = counter(
            "lockapp_tasks_turned_away_total",
            "Runs of a task whose body did not run, by what became of them.",
            (*_OF_LOCK, "outcome"),
        )
        self.degraded = counter(
            "lockapp_degraded_total",
            "Bodies that ran although the lock server could not be asked, by way.",
            (*_OF_LOCK, "way"),
        )
        self.outages = counter(
            "lockapp_engine_outages_total",
            "Times that a lock server stopped answering.",
            ("engine",),
        )
        self.up = Gauge(
            "lockapp_engine_up",
            "Whether the lock server answered when this process last asked it.",
            ("engine",),
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._seen: set[str] = set()
        self._since: weakref.WeakKeyDictionary[Lease, float] = weakref.WeakKeyDictionary()
        self._families: set[str] = set()

    def of(self, alias: str, name: str) -> dict[str, str]:
        """Return the labels of one lock."""
        family = family_of(name)
        if family not in self._families:
            if len(self._families) >= FAMILIES:
                family = OTHER
            else:
                self._families.add(family)
        return {"engine": alias, "family": family}

    # ------------------------------------------------------------------ receivers

    def on_acquired(self, *, alias: str, name: str, lease: Lease, **_: object) -> None:
        """Note how long it took, and when it began."""
        if alias not in self._seen:
            self._seen.add(alias)
            self.up.labels(engine=alias).set(1)
        self.wait.labels(**self.of(alias, name)).observe(lease.waited)
        self._since[lease] = boot_clock()

    def on_released(self, *, alias: str, name: str, lease: Lease, **_: object) -> None:
        """Note for how long it was held."""
        self._ended(alias, name, lease, "released")

    def on_lost(self, *, alias: str, name: str, lease: Lease, **_: object) -> None:
        """Note the loss, and for how long it was held."""
        reason = lease.lost_reason
        self.lost.labels(**self.of(alias, name), reason=reason).inc()
        self._ended(alias, name, lease, reason)

    def _ended(self, alias: str, name: str, lease: Lease, outcome: str) -> None:
        since = self._since.pop(lease, None)
        if since is not None:  # else it was granted before anybody counted, or degraded
            held_s = boot_clock() - since
            self.hold.labels(**self.of(alias, name), outcome=outcome).observe(held_s)

    def on_contended(self, *, alias: str, name: str, **_: object) -> None:
        """Count."""
        self.contended.labels(**self.of(alias, name)).inc()

    def on_forced(self, *, alias: str, name: str, **_: object) -> None:
        """Count."""
        self.forced.labels(**self.of(alias, name)).inc()

    def on_turned_away(self, *, alias: str, name: str, run: Any, **_: object) -> None:
        """Count, by what became of it."""
        self.turned_away.labels(**self.of(alias, name), outcome=run.outcome).inc()

    def on_degraded(self, *, alias: str, name: str, lease: Lease, **_: object) -> None:
        """Count, by way."""
        self.degraded.labels(**self.of(alias, name), way=lease.degraded).inc()

    def on_unavailable(self, *, alias: str, **_: object) -> None:
        """Note that it is down."""
        self.outages.labels(engine=alias).inc()
        self.up.labels(engine=alias).set(0)

    def on_restored(self, *, alias: str, **_: object) -> None:
        """Note that it is back."""
        self.up.labels(engine=alias).set(1)


RECEIVERS = {
    "on_acquired": signals.lock_acquired,
    "on_released": signals.lock_released,
    "on_lost": signals.lease_lost,
    "on_contended": signals.lock_contended,
    "on_forced": signals.lock_forced,
    "on_turned_away": signals.task_turned_away,
    "on_degraded": signals.lock_degraded,
    "on_unavailable": signals.engine_unavailable,
    "on_restored": signals.engine_restored,
}


def connect(registry: CollectorRegistry = REGISTRY) -> Metrics:
    """Register the metrics and begin to count.

    For one registry of a process, and once: ``"lockapp.metrics"`` in ``INSTALLED_APPS`` does so.

    Raises:
        ValueError: ``registry`` has them already.
    """
    metrics = Metrics(registry)
    for receiver, signal in RECEIVERS.items():
        signal.connect(getattr(metrics, receiver), weak=False, dispatch_uid=("lockapp", receiver))
    return metrics


def disconnect() -> None:
    """Count no more; for tests."""
    for receiver, signal in RECEIVERS.items():
        signal.disconnect(dispatch_uid=("lockapp", receiver))
