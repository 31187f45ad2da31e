"""One run of a task's body under its lock: the order of things, for every policy.

=============================  ============================================================
what we know                   what we do
=============================  ============================================================
lock granted                   run the body
a kept result (``remember``)   return it
busy, by this very message     come back later, whatever the policy: it is not its duplicate
busy, by another one           what the policy says
engine unavailable             fail; but a message that has come before comes back again
succeeded before               end quietly: its links, chain and callbacks have been sent
=============================  ============================================================

Invariant: the body runs only while the lock is held, in the process that runs the body.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from celery import states
from celery.exceptions import Ignore, OperationalError, Reject

from lockapp.celery.execution import LEASE, Execution
from lockapp.celery.identity import Key
from lockapp.celery.lifeline import Telling
from lockapp.celery.message import Note, send_again
from lockapp.celery.options import Options
from lockapp.celery.places import Place
from lockapp.celery.publish import LockTask
from lockapp.celery.turned import Turned, tell
from lockapp.context import holder_details
from lockapp.core.flight import Stored
from lockapp.core.run import run_sync
from lockapp.core.values import HolderState
from lockapp.engines.procedures import NoGrant
from lockapp.exceptions import EngineUnavailable, NotAcquired
from lockapp.lease import Lease
from lockapp.single_flight.faces import SyncFace
from lockapp.single_flight.flight import answer, seek
from lockapp.single_flight.leader import Plan, lead
from lockapp.single_flight.store import cache_of, key_of
from lockapp.ways import UNSET

logger = logging.getLogger("lockapp.celery")

LONGEST_PAUSE_S = 10.0
"""How long a message stays away whose earlier delivery is still at work."""

LOOKS = 2
LOOK_S = 0.5
"""How often a message that has met itself looks for a result before it runs, and the longest pause
between: storing a result takes a backend milliseconds, and a busy one longer."""

_WARNED: set[str] = set()


class Running:
    """One run. Made anew for each, since a task's wrapper is shared by threads and processes."""

    __slots__ = ("_begun", "_place", "_telling", "execution", "function", "lock", "options")

    def __init__(
        self, options: Options, key: Key, execution: Execution, function: Callable[..., Any]
    ) -> None:
        """Find the lock; nothing is sent.

        Raises:
            TypeError, ValueError: the arguments make no key.
            ImproperlyConfigured: no such engine or cache.
        """
        self.options = options
        self.execution = execution
        self.function = function
        self.lock = options.lock(key, execution)
        self._telling = Telling()
        self._place = Place(execution, self.lock)
        self._begun = False

    def run(self) -> Any:
        """Run the body under the lock, or end as the table above says."""
        # Around the body as well: locks that it takes itself name the task too.
        with holder_details(**self.execution.details), self._telling, self._place:
            if self.options.scope.queued:
                self._warn_without_lock_task()
            try:
                return self._run()
            except EngineUnavailable as down:
                if self._begun:
                    raise  # the body's own
                return self._unavailable(down)

    def _run(self) -> Any:
        if not self.options.scope.running:
            self._end_if_done()
            return self._call(self.execution.call.args, self.execution.call.kwargs)
        if self.options.flies:
            return self._fly()
        with ExitStack() as stack:
            try:
                lease = self._enter(stack)
            except NotAcquired as refusal:
                return self._turned_away(refusal)
            return self._body(lease)

    def _enter(self, stack: ExitStack) -> Lease:
        """Enter the lock; but don't wait for an earlier delivery of the same message.

        Raises:
            NotAcquired: it is held.
        """
        lock = self.lock
        if lock.wait_s == 0 or not self.execution.from_a_message:
            return stack.enter_context(lock)
        wait_s, lock.wait_s = lock.wait_s, 0.0
        try:
            return stack.enter_context(lock)
        except NotAcquired as refusal:
            if self._own(refusal) is not None:
                raise
        lock.wait_s = wait_s
        return stack.enter_context(lock)

    def _fly(self) -> Any:
        """Run it as a single flight: others get the result, now (``join``) or later."""
        options, lock = self.options, self.lock
        plan = Plan(
            lock=lock,
            # Another task may share the lock, and has results of another kind.
            key=key_of(
                f"{self.execution.task_name}:{lock.name}#result", lock.engine.options.prefix
            ),
            ttl_s=options.remember_s,
            stale_s=0,
            wait_s=lock.wait_s,
            fallback=UNSET,
            shares_errors=options.policy.joins,
            gives_up=self.execution.is_own,
        )
        face = SyncFace(lock.engine.sync, cache_of(options.cache, lock.engine))
        got = run_sync(seek(face, plan))
        if isinstance(got, Lease):
            lease = got
            return run_sync(lead(face, plan, lease, lambda: self._body(lease, in_flight=True)))
        if isinstance(got, Stored):
            self._end_if_done()
            remembered = time.time() < got.fresh_until
            tell(self.execution, lock, "remembered" if remembered else "joined")
            logger.info(
                "%s[%s] has the result of another run", self.execution.task_name,
                self.execution.task_id, extra={"lockapp_name": lock.name},
            )  # fmt: skip
            return answer(got, plan)
        if isinstance(got, NotAcquired):
            return self._turned_away(got)
        raise got

    def _body(self, lease: Lease, *, in_flight: bool = False) -> Any:
        self._telling.holds(lease, self.lock, self.execution)
        self._end_if_done()
        if self.lock.several and self.execution.from_a_message and not lease.degraded:
            self._give_way_to_a_twin(lease)
        args, kwargs = self.options.policy.arguments(self.execution, self.lock, self.options.cache)
        before = LEASE.set(lease)
        try:
            result = self._call(args, kwargs)
        finally:
            LEASE.reset(before)
        if in_flight and self.lock.raises_loss:
            lease.check()
        return result

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._place.leave()  # from here on it runs, and waits no more
        self._begun = True
        result = self.function(*self.execution.head, *args, **kwargs)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                f"{self.function.__qualname__} returned a coroutine, which nobody would run"
            )
        return result

    def _warn_without_lock_task(self) -> None:
        """Say once per task and process that nobody looks at the queue."""
        task, name = self.execution.task, self.execution.task_name
        if task is not None and not isinstance(task, LockTask) and name not in _WARNED:
            _WARNED.add(name)
            logger.warning(
                "%s has scope=%r, but its class is not lockapp.celery.LockTask: copies of what "
                "waits already are sent all the same", name, self.options.scope.word,
            )  # fmt: skip

    def _end_if_done(self) -> None:
        """End a second delivery of a message that has succeeded; nothing of it is sent again.

        The lock is released a moment before the worker stores the result. So a message that has
        met itself, and finds the lock free but no outcome, looks once more before it runs.

        Raises:
            Ignore: it has succeeded, or it comes back to see.
        """
        outcome, note = self.execution.earlier_outcome(), self.execution.note(self.lock.name)
        if outcome == states.SUCCESS:
            logger.info(
                "%s[%s] has succeeded before; this delivery ends",
                self.execution.task_name, self.execution.task_id,
                extra={"lockapp_name": self.lock.name},
            )  # fmt: skip
            raise Ignore("an earlier delivery of this message has succeeded")
        if note.own and note.looked < LOOKS and outcome not in states.READY_STATES:
            why = Ignore("its earlier delivery has let go and may be about to succeed")
            self._come_back(note.later(time.time(), own=True, looked=note.looked + 1), why, LOOK_S)

    def _give_way_to_a_twin(self, lease: Lease) -> None:
        """Let the same message run only once at a time, where the lock has room for several."""
        twin = self._own_holder(lease.fence)
        if twin is not None:
            self._come_back_after_own(self.lock.contended(NoGrant(twin, 0.0)))

    def _own(self, refusal: NotAcquired) -> HolderState | None:
        """Return the earlier delivery of this message that is in its way, if one is."""
        holder: HolderState | None = refusal.holder
        if self.execution.is_own(holder):
            return holder
        return self._own_holder() if self.lock.several else None

    def _own_holder(self, before: float = float("inf")) -> HolderState | None:
        state = self.lock.engine.show(self.lock.name) if self.execution.from_a_message else None
        holders: Sequence[HolderState] = state.holders if state else ()
        return next((it for it in holders if it.fence < before and self.execution.is_own(it)), None)

    def _turned_away(self, refusal: NotAcquired) -> Any:
        if self._own(refusal) is not None:
            self._come_back_after_own(refusal)
        self._end_if_done()
        return self.options.policy.contended(
            Turned(self.execution, self.lock, refusal, self.options.cache)
        )

    def _come_back_after_own(self, refusal: NotAcquired) -> NoReturn:
        note, now = self.execution.note(self.lock.name), time.time()
        limit_s = self.lock.spec.max_hold_ms / 1000
        if note.own and limit_s and now - note.since > limit_s:
            refusal.add_note(
                f"(by an earlier delivery of this message, for more than its max_hold of "
                f"{limit_s:g} s; the message is given up)"
            )
            logger.error("%s", refusal, extra={"lockapp_name": self.lock.name})
            raise refusal
        tell(self.execution, self.lock, "postponed")
        self._come_back(note.later(now, own=True), refusal)

    def _come_back(
        self, note: Note, why: Exception, longest_s: float = LONGEST_PAUSE_S
    ) -> NoReturn:
        """End this delivery of a message of which another one may be at work; it comes back.

        Raises:
            Ignore: not Retry; the state in the result backend is that of the other delivery.
            Reject: the broker did not take it, and still has this one.
            kombu.exceptions.OperationalError: the broker did not take it, and has none.
        """
        self._place.leave()  # the other delivery had its own turn; LockTask takes no other one
        task: Any = self.execution.task
        try:
            send_again(task, note, longest_s, why)
        except OperationalError as down:
            if not task.acks_late:
                raise
            raise Reject(down, requeue=True) from down
        raise Ignore(str(why))

    def _unavailable(self, down: EngineUnavailable) -> NoReturn:
        note, now = self.execution.note(self.lock.name), time.time()
        limit_s = self.lock.spec.max_hold_ms / 1000
        if not note.times and not self.execution.redelivered:
            raise down
        if note.since and limit_s and now - note.since > limit_s:
            raise down
        if note.own or self.execution.redelivered:
            self._come_back(note.later(now, own=True), down)
        raise send_again(self.execution.task, note.later(now), LONGEST_PAUSE_S, down)
