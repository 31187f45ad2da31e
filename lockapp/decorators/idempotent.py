"""``@idempotent_view``: side effects at most once, for clients that try again.

Invariant: what the view wrote is committed together with the record of its answer, or not at all.
The lock, taken outside, only makes the others quick to answer: without it they wait for the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from functools import wraps
from typing import Any, cast

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from lockapp import idempotency
from lockapp.conf import DEFAULT_ALIAS
from lockapp.core.duration import to_ms
from lockapp.core.options import OnUnavailable
from lockapp.decorators import answers
from lockapp.decorators.arguments import (
    Hook,
    is_async,
    methods_option,
    refuse_shape,
    unavailable_option,
)
from lockapp.decorators.decoration import Decoration, ViewT
from lockapp.decorators.key import Key, view_name
from lockapp.decorators.transactions import (
    ExemptEverywhere,
    atomic_aliases,
    atomic_on,
    refuse_open_transaction,
)
from lockapp.exceptions import EngineUnavailable, NotAcquired
from lockapp.idempotency import Fingerprint, Idempotency, Scope

FAMILY = "idempotency"
BY = "@idempotent_view"
ATTEMPTS = 20  # to claim the record; each that fails waited for somebody who rolled back


def idempotent_view(
    *,
    using: str = DEFAULT_DB_ALIAS,
    keep: float | timedelta = timedelta(days=1),
    scope: Scope = idempotency.user_or_session,
    fingerprint: Fingerprint = idempotency.payload,
    methods: Collection[str] | None = ("POST", "PATCH"),
    max_body: int = 262_144,
    engine: str = DEFAULT_ALIAS,
    wait: float | timedelta | None = None,
    on_contention: Hook | None = None,
    on_unavailable: Hook | OnUnavailable = "open",
) -> Callable[[ViewT], ViewT]:
    """Do at most once what a client asks for under one Idempotency-Key; answer the same again.

    ::

        @login_required
        @idempotent_view()
        def pay(request):
            order = Order.objects.create(…)
            charge(order.total, key=request.lockapp_idempotency.derive("charge"))
            return JsonResponse({"order": order.pk}, status=201)

    The view runs in a transaction on ``using``, and its answer is stored in the same transaction,
    so that both are committed or neither is. Rolled back and not stored, so that the client may
    try again: an exception, a status of 500 and more, and what says Retry-After.

    What others are answered: 400 without a key or with a malformed one; 409 with Retry-After while
    the first is still at work; 422 for another payload under the same key; afterwards the stored
    answer, with ``Idempotent-Replayed: true``. Of its headers only
    :data:`lockapp.idempotency.STORED_HEADERS` are stored, and no cookies.

    What reaches beyond the database is not rolled back: give a service that is called the key
    from ``request.lockapp_idempotency.derive("charge")``, the same for each attempt.

    Args:
        using: the database that is written, with the table of records. Of several databases under
            ATOMIC_REQUESTS it commits first: if another one fails then, the view is not run again.
        keep: seconds for which an answer is given again; after them the key is a new one.
        scope: ``(request) -> whose key it is``; by default the user's, else the session's. One key
            of two users, or for two paths, is two keys. None or "" is a bad request (400).
        fingerprint: ``(request) -> str | bytes``, which is the same for the same payload; by
            default of the query and the body, byte by byte. Method and path are added to it.
        methods: the HTTP methods that need a key, None for all; others run as without the
            decorator.
        max_body: bytes of an answer that are stored at most; a longer one is a ValueError.
        engine: the alias of the engine whose lock the first one holds.
        wait: seconds to wait for the first one before answering 409; None for the engine's
            ``view_wait``, by default not at all. A waiting request keeps its web worker.
        on_contention: ``(request, NotAcquired) -> response``, or None for the usual 409.
        on_unavailable: what happens when the engine can't be asked. ``"open"``: go on, and a
            duplicate waits up to 10 s for the record; else as for :func:`view_lock`.

    Raises:
        TypeError, ValueError: at decoration, for what makes no sense, or an async view: Django's
            transactions are synchronous. At a request, and rolled back: for a streaming response,
            and for one that is too long.
        ImproperlyConfigured: at a request, when the view is called inside an open transaction.
    """
    if max_body < 0:
        raise ValueError(f"{BY}: max_body must be 0 bytes or more, not {max_body!r}")
    return Idempotent(
        using=using,
        keep=timedelta(milliseconds=to_ms(keep, "keep")),
        scope=scope,
        fingerprint=fingerprint,
        methods=methods_option(methods, BY),
        max_body=max_body,
        lock=Decoration(
            key=Key((FAMILY, _digest)),
            using=engine,
            wait_s=None if wait is None else to_ms(wait, "wait", zero=True) / 1000,
            options={"on_unavailable": unavailable_option(on_unavailable, fenced=False)},
            methods=None,
            hooks={
                NotAcquired: on_contention,
                EngineUnavailable: on_unavailable if callable(on_unavailable) else None,
            },
            fenced=False,
        ),
    ).decorate


class Idempotent:
    """One ``idempotent_view(...)``: everything about it that is the same for each request."""

    def __init__(
        self,
        using: str,
        keep: timedelta,
        scope: Scope,
        fingerprint: Fingerprint,
        methods: frozenset[str] | None,
        max_body: int,
        lock: Decoration,
    ) -> None:
        self.using = using
        self.keep = keep
        self.scope = scope
        self.fingerprint = fingerprint
        self.methods = methods
        self.max_body = max_body
        self.lock = lock

    def decorate(self, view: ViewT) -> ViewT:
        """Wrap a view: see who asks, lock, and run it in its transaction."""
        refuse_shape(view, BY)
        if is_async(view):
            raise TypeError(
                f"{BY}: {view_name(view)} is an async view, and Django's transactions, in which "
                "the answer is stored, are synchronous. Make it a plain function; Django runs it "
                "in a thread"
            )
        exempt = getattr(view, "_non_atomic_requests", ())
        if isinstance(exempt, ExemptEverywhere):
            raise ValueError(
                f"{BY}: {view_name(view)} opens its transaction itself already, inside a lock: put "
                f"@view_lock above {BY}, and {BY} only once"
            )
        mark = ExemptEverywhere(exempt)

        @wraps(view)
        def once(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            aliases = [alias for alias in atomic_aliases(mark) if alias != self.using]
            run = lambda: view(request, *args, **kwargs)  # noqa: E731
            return self._once(request, [*aliases, self.using], run)

        once._non_atomic_requests = mark  # type: ignore[attr-defined]
        locked = self.lock.decorate(once)

        @wraps(view)
        def idempotent(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if self.methods is not None and request.method not in self.methods:
                with atomic_on(atomic_aliases(mark)):
                    return cast(HttpResponseBase, view(request, *args, **kwargs))
            refuse_open_transaction(view, BY)
            try:
                identity = idempotency.identify(request, self.scope, self.fingerprint)
            except idempotency.BadKey:
                return answers.bad_key(request)
            request.lockapp_idempotency = identity  # type: ignore[attr-defined]
            return locked(request, *args, **kwargs)

        idempotent._non_atomic_requests = mark  # type: ignore[attr-defined]
        return cast(ViewT, idempotent)

    def _once(
        self, request: HttpRequest, aliases: list[str], run: Callable[[], Any]
    ) -> HttpResponseBase:
        identity: Idempotency = request.lockapp_idempotency  # type: ignore[attr-defined]
        for _ in range(ATTEMPTS):
            found = idempotency.find(identity.digest, self.using)
            if found is not None:
                if found.fingerprint != identity.fingerprint:
                    return answers.payload_differs(request)
                return idempotency.replay(found)
            try:
                return self._attempt(request, aliases, run)
            except idempotency.Taken:
                continue
            except idempotency.Busy:
                break
        return answers.contended(request, None)

    def _attempt(
        self, request: HttpRequest, aliases: list[str], run: Callable[[], Any]
    ) -> HttpResponseBase:
        """Claim the record, run the view and store its answer, in one transaction."""
        record = idempotency.record_of(request.lockapp_idempotency, request, self.keep)  # type: ignore[attr-defined]
        with idempotency.claiming(record, self.using, atomic_on(aliases)):
            response = _complete(run())
            if connections[self.using].needs_rollback:
                return response  # the view asked for it, as DRF does for what it answers
            if idempotency.is_final(response):
                idempotency.store(record, response, self.max_body, self.using)
            else:
                for alias in aliases:
                    transaction.set_rollback(True, using=alias)
            return response


def _digest(request: HttpRequest, *args: Any, **kwargs: Any) -> str:
    return cast(str, request.lockapp_idempotency.digest)  # type: ignore[attr-defined]


def _complete(response: Any) -> HttpResponse:
    """Return a response whose content is known.

    Raises:
        TypeError: it has none that could be stored.
    """
    if isinstance(response, HttpResponseBase) and response.streaming:
        response.close()
        raise TypeError(
            f"{BY}: a streaming response can't be stored and given again. Answer with the address "
            "of what is to be streamed. What the view wrote is rolled back"
        )
    if not isinstance(response, HttpResponse):
        if callable(close := getattr(response, "close", None)):
            close()  # a coroutine: not started
        raise TypeError(f"{BY}: the view returned {response!r}, which is no HttpResponse")
    if callable(render := getattr(response, "render", None)):
        return cast(
            HttpResponse, render()
        )  # of a TemplateResponse; what is rendered already stays as it is
    return response
