"""What stands in the parentheses of @single_instance, validated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockapp.callbacks import OnLost, OnRevoke
from lockapp.celery.execution import Execution
from lockapp.celery.identity import Key
from lockapp.celery.policies import Policy
from lockapp.celery.scope import Scope
from lockapp.core.options import OnUnavailable
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.primitives import Semaphore
from lockapp.ways import Unset, Wait

Seconds = float | timedelta


@dataclass(frozen=True, slots=True)
class Options:
    """How a task is locked. Durations in seconds unless they are timedeltas."""

    policy: Policy
    scope: Scope
    queued_ttl_s: float
    limit: int
    ttl: Seconds | Unset
    max_hold: Seconds | Unset | None
    wait: Wait | Unset
    remember_s: float
    cache: str
    using: str
    why: str
    on_lost: OnLost
    on_revoke: OnRevoke
    on_unavailable: OnUnavailable | Unset

    @property
    def flies(self) -> bool:
        """Whether a run's result is for others too: those who wait, or those who come later."""
        return self.policy.joins or self.remember_s > 0

    @property
    def shares(self) -> bool:
        """Whether something of a run goes through a cache."""
        return self.flies or self.policy.word == "rerun"

    def refuse_unfit(self, *, cache_given: bool, queued_ttl_given: bool) -> None:
        """Refuse combinations that can't do what they say.

        Raises:
            TypeError, ValueError: naming the option that is too much.
        """
        self.scope.refuse_unfit(self, queued_ttl_given)
        word = f"on_contention={self.policy.word!r}"
        if self.limit > 1 and (self.policy.exclusive or self.remember_s):
            what = word if self.policy.exclusive else "remember="
            raise ValueError(
                f"{what} speaks of the one that runs; with limit={self.limit} there "
                "may be several. Use on_contention='wait', 'retry', 'skip' or 'raise'"
            )
        if self.remember_s and self.policy.word == "rerun":
            raise ValueError(
                "remember= says not to run again what on_contention='rerun' wants "
                "to run again; leave out one of them"
            )
        if (
            self.flies
            and not isinstance(self.on_unavailable, Unset)
            and self.on_unavailable != "raise"
        ):
            raise ValueError(
                f"on_unavailable={self.on_unavailable!r} runs without a lock, and then there is "
                "nobody whose result could be shared; leave it out with 'join' and remember="
            )
        if cache_given and not self.shares:
            raise TypeError(
                f"cache= has no meaning with {word}, which shares nothing; it is for 'join', "
                "'rerun' and remember="
            )

    def lock(self, key: Key, execution: Execution) -> Lock:
        """Return the lock of one run; nothing is sent.

        Raises:
            TypeError, ValueError: the arguments make no key.
            ImproperlyConfigured: no such engine.
        """
        return self.named(execution.name(key), execution.hard_limit_s)

    def named(self, name: str, hard_limit_s: float | None) -> Lock:
        """Return a lock of that name; nothing is sent.

        Args:
            name: what it locks.
            hard_limit_s: after how many seconds the run ends at the latest, if anybody sees to it.

        Raises:
            ImproperlyConfigured: no such engine.
        """
        max_hold = self.max_hold
        if isinstance(max_hold, Unset) and hard_limit_s is not None:
            max_hold = hard_limit_s
        options = {
            "ttl": self.ttl,
            "wait": self.wait,
            "max_hold": max_hold,
            "why": self.why,
            "on_lost": self.on_lost,
            "on_revoke": self.on_revoke,
            # A result that is shared rests on a lock.
            "on_unavailable": "raise" if self.flies else self.on_unavailable,
            "release": "now",  # the run is over, and others hear of its result
        }
        engine = locks[self.using]
        if self.limit > 1:
            return Semaphore(engine, name, self.limit, **options)
        return Lock(engine, name, **options)  # type: ignore[arg-type]
