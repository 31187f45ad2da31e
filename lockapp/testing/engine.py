"""An engine of a test's own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test.utils import TestContextDecorator, override_settings

from lockapp import conf
from lockapp.engines.base import Engine
from lockapp.engines.memory.engine import put_server
from lockapp.handler import locks
from lockapp.testing.clock import SteppableClock

MEMORY = "lockapp.engines.memory.MemoryEngine"

_numbers = itertools.count(1)


class override_engine(TestContextDecorator):  # noqa: N801 - named as override_settings is
    """Put an alias on a fresh memory engine, or on the engine of a given configuration.

    ::

        with override_engine() as engine: ...

        @override_engine(alias="payments")
        class PaymentTests(TestCase): ...

    A context manager, and a decorator of functions, coroutine functions and test classes of Django.
    Other aliases stay as they are; without any setting LOCKAPP there is only this one and
    "default". Locks that are held when it ends stay with their engine, and can be released.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        alias: str = conf.DEFAULT_ALIAS,
        clock: SteppableClock | None = None,
        attr_name: str | None = None,
        kwarg_name: str | None = None,
    ) -> None:
        """Say which engine; nothing is made before it is entered.

        Args:
            config: what stands in ``LOCKAPP[alias]``; None for a memory engine that starts empty
                each time this is entered.
            alias: the engine's alias.
            clock: the clock of a memory engine; None for one that nobody turns.
            attr_name: of a decorated class, the attribute that the engine is put into.
            kwarg_name: of a decorated function, the argument that the engine is given as.

        Raises:
            ValueError: a clock, and an engine that has one of its own.
        """
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)
        if clock is not None and config is not None and config.get("ENGINE") != MEMORY:
            raise ValueError("clock: only a memory engine can be given one")
        self._config = config
        self._alias = alias
        self._clock = clock
        self._entered: list[tuple[override_settings, str, str]] = []

    def __enter__(self) -> Engine:  # type: ignore[override]
        return self.enable()

    def enable(self) -> Engine:
        """Put the alias on the engine, and return it.

        Raises:
            ImproperlyConfigured: the configuration makes no sense.
        """
        given = dict(self._config or {"ENGINE": MEMORY})
        prefix = conf.read_engine(self._alias, given).options.prefix
        location = ""
        if given.get("ENGINE") == MEMORY:
            location = given["LOCATION"] = f"lockapp.testing {next(_numbers)}"
        others = getattr(settings, conf.SETTING, None) or {conf.DEFAULT_ALIAS: {"ENGINE": MEMORY}}
        changed = override_settings(**{conf.SETTING: {**others, self._alias: given}})
        if self._clock is not None:
            put_server(location, prefix, self._clock.make_server())
        changed.enable()
        self._entered.append((changed, location, prefix))
        try:
            return locks[self._alias]
        except ImproperlyConfigured:
            self.disable()
            raise

    def disable(self) -> None:
        """Put the alias back."""
        changed, location, prefix = self._entered.pop()
        changed.disable()
        put_server(location, prefix, None)
