"""``LockedViewMixin``: ``@view_lock`` for class-based views, where the order of bases decides.

Not here: a second mechanism. The mixin puts the decorator round the ``dispatch()`` that comes after
it, and Django's mark of non-atomic views on what ``as_view()`` returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.utils.decorators import classonlymethod

from lockapp.decorators import view_lock
from lockapp.decorators.key import Call, Key
from lockapp.decorators.transactions import ExemptEverywhere

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.http.response import HttpResponseBase
    from django.views import View as Base
else:
    Base = object


class LockedViewMixin(Base):
    """Let one request at a time into a class-based view, per key; answer the others 409.

    ::

        class Capture(LoginRequiredMixin, LockedViewMixin, View):
            lock_key = ("order", "{pk}")
            lock_options = {"wait": 3, "methods": ["POST"]}

            def post(self, request, pk): ...

        class Pay(LockedViewMixin, DetailView):
            def get_lock_key(self):
                return "cart", self.request.user.cart_id

    Guarantee: that of :func:`lockapp.decorators.view_lock`, for sync and async views, with its
    arguments. What stands to the left of the mixin runs before the lock is taken, what stands to
    the right runs inside, and so do all handlers.

    Under ATOMIC_REQUESTS the transaction is opened inside the lock. An ``as_view()`` of one's own
    that does not call this one's is found out: ImproperlyConfigured at a request.
    """

    lock_key: ClassVar[Sequence[object]] = ()
    """The parts, as of ``view_lock``: the family, then constants, templates, callables."""
    lock_options: ClassVar[Mapping[str, Any]] = {}
    """The keyword arguments of ``view_lock``."""

    _lock: ClassVar[Callable[[Any], Any] | None] = None
    _lock_exempt: Collection[str] = ()  # as_view() gives it to each instance

    def get_lock_key(self) -> Any:
        """Say what to lock, request by request, instead of ``lock_key``.

        Returns the family and the values that follow it; text is taken as it is, never as a
        template. May be a coroutine function on an async view. ``self.request``, ``self.args`` and
        ``self.kwargs`` are there; an empty value is a bad request (400), and a text in place of
        the tuple a TypeError.
        """
        return self.lock_key

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Judge key and options where the class is written.

        Raises:
            TypeError, ValueError: as view_lock().
        """
        super().__init_subclass__(**kwargs)
        if cls._has_own_key():
            view_lock(_MethodKey(cls.get_lock_key), **cls.lock_options)
        elif cls.lock_key:
            cls._lock = staticmethod(view_lock(*_several(cls.lock_key), **cls.lock_options))

    @classonlymethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:  # noqa: N805 - as Django's own
        """See Django's View. What it returns is not atomic: the lock is taken outside.

        Raises:
            ImproperlyConfigured: the class does not say what to lock.
            TypeError: an asynchronous ``get_lock_key()``, and a view that is not.
        """
        if cls._lock is None and not cls._has_own_key():
            raise ImproperlyConfigured(
                f"{cls.__name__} does not say what to lock: give it lock_key = "
                '("order", "{pk}"), or get_lock_key()'
            )
        if iscoroutinefunction(cls.get_lock_key) and not cls.view_is_async:
            raise TypeError(f"{cls.__name__}: get_lock_key() is asynchronous and the view is not")
        exempt = ExemptEverywhere()
        view: Any = super().as_view(*args, _lock_exempt=exempt, **initkwargs)
        exempt.update(getattr(view, "_non_atomic_requests", ()))
        view._non_atomic_requests = exempt
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Take the lock, then go on as without this mixin. Returns an awaitable on async views."""
        inner = super().dispatch
        view: Any = wraps(inner)(partial(inner))
        below = getattr(view, "_non_atomic_requests", ())
        if not isinstance(below, ExemptEverywhere):  # else it is locked again further in
            view._non_atomic_requests = set(self._lock_exempt)
        decorate: Any = self._lock
        if self._has_own_key():
            decorate = view_lock(_MethodKey(self.get_lock_key), **self.lock_options)
        locked: HttpResponseBase = decorate(view)(request, *args, **kwargs)
        return locked

    @classmethod
    def _has_own_key(cls) -> bool:
        return cls.get_lock_key is not LockedViewMixin.get_lock_key


class _MethodKey(Key):
    """What a view's own method says, in place of the parts of ``view_lock``."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.callables = [method]
        self.fields = []

    def name(self, call: Call) -> str:
        """See Key."""
        return self._joined(_several(self.callables[0]()))

    async def aname(self, call: Call) -> str:
        """See Key."""
        parts = self.callables[0]()
        return self._joined(_several(await parts if inspect.isawaitable(parts) else parts))


def _several(parts: Any) -> list[Any]:
    """Return the parts of a key as a list; a text would be taken apart into its letters."""
    if isinstance(parts, str):
        raise TypeError(f"a lock's key has several parts: {parts!r} stands without its comma")
    return list(parts)
