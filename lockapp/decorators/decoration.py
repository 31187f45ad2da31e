"""One ``@view_lock``, round a view: take the lock, open the transactions, answer who can't come in.

Invariant: what the view wrote through the request's transactions is committed, or rolled back,
before the lock is released.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, ExitStack
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.functional import LazyObject, empty

from lockapp.context import holder_details
from lockapp.decorators.answers import contended, unavailable
from lockapp.decorators.arguments import Hook, is_async, refuse_shape
from lockapp.decorators.key import Call, Key, view_name
from lockapp.decorators.transactions import (
    ExemptEverywhere,
    atomic_aliases,
    atomic_on,
    refuse_open_transaction,
)
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired, StaleFence
from lockapp.handler import locks
from lockapp.lock import Lock

logger = logging.getLogger("lockapp")

ViewT = TypeVar("ViewT", bound=Callable[..., Any])

UNTOUCHED = frozenset(("HEAD", "OPTIONS"))
"""Methods that are not locked unless they are named: probes and preflights of browsers."""
PATH_LIMIT = 200  # characters of a path that go into the holder's description


class Decoration:
    """One ``view_lock(...)``: everything about it that is the same for each request."""

    def __init__(
        self,
        key: Key,
        using: str,
        wait_s: float | None,
        options: dict[str, Any],
        methods: frozenset[str] | None,
        hooks: dict[type[Exception], Hook | None],
        fenced: bool,
    ) -> None:
        self.key = key
        self.using = using
        self.wait_s = wait_s
        self.options = options
        self.methods = methods
        self.hooks = hooks
        self.fenced = fenced

    def decorate(self, view: ViewT) -> ViewT:
        """Wrap a view. Cheap: ``method_decorator`` does so at each request."""
        refuse_shape(view)
        awaited = is_async(view)
        if not awaited:
            for what in (*self.key.callables, *filter(None, self.hooks.values())):
                if iscoroutinefunction(what):
                    raise TypeError(f"@view_lock: {what!r} is asynchronous and the view is not")
        self.key.check(view)
        return cast(ViewT, self._async(view) if awaited else self._sync(view))

    def _sync(self, view: Callable[..., Any]) -> Callable[..., HttpResponse]:
        before: Collection[str] = getattr(view, "_non_atomic_requests", ())
        inner = isinstance(before, ExemptEverywhere)
        exempt = ExemptEverywhere(before)
        if inner and self.fenced:
            raise ValueError(
                f"@view_lock: {view_name(view)} is locked already below, where its transaction is "
                "opened: put fenced=True there"
            )

        @wraps(view)
        def locked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            # The view inside may be locked as well: then the transactions are its business.
            aliases = [] if inner else atomic_aliases(exempt)
            if self._unlocked(request):
                with atomic_on(aliases):
                    return _finished(view(request, *args, **kwargs), view)
            refuse_open_transaction(view)
            call = Call(view, request, args, kwargs)
            name = self.key.name(call)
            with holder_details(**_holder(request)), ExitStack() as stack:
                try:
                    lease = stack.enter_context(self._lock(name))
                    fence = lease if self.fenced else None
                    stack.enter_context(atomic_on(aliases, fence))
                except (NotAcquired, EngineUnavailable, LeaseLost, StaleFence) as error:
                    return self._answer(request, error)[0]
                request.lockapp_lease = lease  # type: ignore[attr-defined]
                return _finished(view(request, *args, **kwargs), view)

        locked._non_atomic_requests = exempt  # type: ignore[attr-defined]
        return locked

    def _async(self, view: Callable[..., Any]) -> Callable[..., Any]:
        exempt: Collection[str] = getattr(view, "_non_atomic_requests", ())
        if self.fenced:
            raise TypeError(
                f"@view_lock: {view_name(view)} is an async view, and Django's transactions are "
                "synchronous: leave fenced=True out, and await sync_to_async(write)(lease) where "
                "write() opens fenced_atomic(lease)"
            )

        @wraps(view)
        async def locked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not isinstance(exempt, ExemptEverywhere) and atomic_aliases(exempt):
                raise ImproperlyConfigured(
                    f"{view_name(view)}: an async view can't be run under ATOMIC_REQUESTS; put "
                    "@transaction.non_atomic_requests below @view_lock"
                )
            if self._unlocked(request):
                return cast(HttpResponse, await view(request, *args, **kwargs))
            call = Call(view, request, args, kwargs)
            name = await self.key.aname(call)
            async with AsyncExitStack() as stack:
                stack.enter_context(holder_details(**_holder(request)))
                try:
                    lease = await stack.enter_async_context(self._lock(name))
                except (NotAcquired, EngineUnavailable, LeaseLost) as error:
                    answer, coming = self._answer(request, error)
                    given = None if coming is None else await coming
                    return answer if given is None else cast(HttpResponse, given)
                request.lockapp_lease = lease  # type: ignore[attr-defined]
                return cast(HttpResponse, await view(request, *args, **kwargs))

        return locked

    def _unlocked(self, request: HttpRequest) -> bool:
        if self.methods is None:
            return request.method in UNTOUCHED
        return request.method not in self.methods

    def _lock(self, name: str) -> Lock:
        engine = locks[self.using]
        wait_s = engine.options.view_wait_ms / 1000 if self.wait_s is None else self.wait_s
        return Lock(engine, name, wait=wait_s, **self.options)

    def _answer(
        self, request: HttpRequest, error: NotAcquired | EngineUnavailable | LeaseLost | StaleFence
    ) -> tuple[HttpResponse, Any]:
        """Return the response, and the hook's awaitable if its answer is still to come."""
        if isinstance(error, LeaseLost | StaleFence):
            # Ours, and somebody else's before the view began: to the client, not its turn.
            taken = NotAcquired(
                str(error), name=error.name, holder=None, waited=0.0, retry_after=0.0
            )
            taken.__cause__ = error
            if isinstance(error, StaleFence):
                logger.error(
                    "%s: the lock was granted, the database refuses: %s", request.path, error
                )
            return self._answer(request, taken)
        if isinstance(error, NotAcquired):
            logger.info("%s: not let in: %s", request.path, error)
            hook, usual = self.hooks[NotAcquired], contended(request, error)
        else:
            logger.error("%s: not let in: %s", request.path, error)
            hook, usual = self.hooks[EngineUnavailable], unavailable(request)
        given = hook(request, error) if hook else None
        if inspect.isawaitable(given):
            return usual, given
        return usual if given is None else given, None


def _holder(request: HttpRequest) -> dict[str, object]:
    """Say who is asking, without loading anything: the user only if somebody did so already."""
    user = getattr(request, "_acached_user", None) or getattr(request, "user", None)
    if isinstance(user, LazyObject) and user._wrapped is empty:
        user = None
    return {"path": request.path[:PATH_LIMIT], "user": getattr(user, "pk", None)}


def _finished(response: Any, view: Callable[..., Any]) -> HttpResponse:
    if inspect.iscoroutine(response):
        response.close()  # not started: nothing ran without the lock
        raise TypeError(
            f"{view_name(view)} returned a coroutine: there is an async view below a synchronous "
            "decorator. Put @view_lock directly on the async view, or mark the decorator's "
            "wrapper with asgiref.sync.markcoroutinefunction"
        )
    return cast(HttpResponse, response)
