"""``@view_lock``: one request at a time per business key.

Invariant: the view runs only while the lock is held, and what it wrote through the request's
transactions is committed, or rolled back, before the lock is released.

Not here: how a lock works, and what a name may be made of (``lockapp.lock``, ``lockapp.naming``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta

from lockapp.callbacks import OnLost, OnRevoke, on_lost_option, on_revoke_option
from lockapp.conf import DEFAULT_ALIAS
from lockapp.core.duration import to_ms
from lockapp.core.options import OnUnavailable
from lockapp.decorators.answers import lock_answer
from lockapp.decorators.arguments import Hook, lock_options, methods_option, unavailable_option
from lockapp.decorators.decoration import Decoration, ViewT
from lockapp.decorators.idempotent import idempotent_view
from lockapp.decorators.key import Key
from lockapp.exceptions import EngineUnavailable, NotAcquired
from lockapp.ways import UNSET, Unset

__all__ = ["idempotent_view", "lock_answer", "view_lock"]


def view_lock(
    *parts: object,
    using: str = DEFAULT_ALIAS,
    wait: float | timedelta | None = None,
    ttl: float | timedelta | None = None,
    max_hold: float | timedelta | Unset | None = UNSET,
    why: str = "",
    on_lost: OnLost = None,
    on_revoke: OnRevoke = None,
    methods: Collection[str] | None = None,
    on_contention: Hook | None = None,
    on_unavailable: Hook | OnUnavailable | None = None,
    fenced: bool = False,
) -> Callable[[ViewT], ViewT]:
    """Let one request at a time into a view, per key; answer the others 409.

    ::

        @view_lock("order", "{pk}")                          # a URL argument, with its type
        @view_lock("cart", "{user.pk}", wait=3)
        @view_lock("cart", "{request.POST[cart]:int}")       # form fields are text: say what it is
        @view_lock("order", lambda request, pk: cart_of(pk)) # anything else

    The lease is ``request.lockapp_lease`` inside the view (of several, the innermost one). If it is
    lost meanwhile, that is logged and the response stands; call ``request.lockapp_lease.check()``
    before what two must not do.

    The lock covers the call of the view and its transactions. What happens to the response later is
    outside: a TemplateResponse is rendered, and a StreamingHttpResponse is streamed, without it.
    Load what the lock protects *inside* the view: what was read before may be old.

    Args:
        *parts: the family (fixed text), then constants, templates of exactly one field, or
            callables ``(request, *args, **kwargs)``. A field starts at ``request``, ``user`` or a
            URL argument, goes on by ``.attribute`` or ``[item]`` (nothing private, no calls), and
            may end in ``:int``, ``:str`` or ``:uuid``, so that two views that get the same key in
            different types take the same lock. An empty or missing value is a bad request (400).
        using: the engine's alias.
        wait: seconds to wait for the lock before answering 409; None for the engine's
            ``view_wait``, by default not at all. A waiting request keeps its web worker.
        ttl: seconds a lease lives between renewals; None for the engine's.
        max_hold: seconds after which it is no longer renewed; not given, the engine's.
        why: a word for operators who see the lock held.
        on_lost: a function, called with the lease when it is lost; ``"raise"``: the request fails
            with LeaseLost, although the view succeeded.
        on_revoke: a function, called with the lease when an operator asks the view to let go.
        methods: lock these HTTP methods only; None for all but HEAD and OPTIONS, which by HTTP ask
            for nothing to be done and are let in. Name them to have them locked.
        on_contention: ``(request, NotAcquired) -> response``, or None for the usual 409. A
            coroutine function is welcome on an async view.
        on_unavailable: the same with EngineUnavailable and 503; or a word: ``"local"`` runs the
            view under a lock of this process, ``"open"`` without one, ``"raise"`` never; see
            :class:`lockapp.lock.Lock`. By default the engine's, and a hook means ``"raise"``.
        fenced: open the request's transactions by :func:`lockapp.fencing.fenced_atomic`; without
            ATOMIC_REQUESTS, one on the default database. Who is late or must wait there is
            answered as who is contended; a lease that is over at the end rolls back and raises
            LeaseLost. Not for async views, and of stacked locks for the innermost one only.

    Raises:
        TypeError, ValueError: at decoration, for what can't be locked or makes no sense.
        ImproperlyConfigured: at a request, when the view is called inside an open transaction:
            the mark did not reach Django, and the lock would be released before the commit.
        AlreadyHeld: at a request, when the caller has this lock already.
    """
    decoration = Decoration(
        key=parts[0] if len(parts) == 1 and isinstance(parts[0], Key) else Key(parts),
        using=using,
        wait_s=None if wait is None else to_ms(wait, "wait", zero=True) / 1000,
        options={
            "on_lost": on_lost_option(on_lost),
            "on_revoke": on_revoke_option(on_revoke),
            "on_unavailable": unavailable_option(on_unavailable, fenced),
            **lock_options(ttl, max_hold, why),
        },
        methods=methods_option(methods),
        hooks={
            NotAcquired: on_contention,
            EngineUnavailable: on_unavailable if callable(on_unavailable) else None,
        },
        fenced=fenced,
    )
    return decoration.decorate
