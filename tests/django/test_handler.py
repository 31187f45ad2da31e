"""Engines by alias: made late, once, and anew when the settings change."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

import lockapp
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.redis import RedisEngine
from lockapp.handler import lock, locks

NOWHERE = "redis://127.0.0.1:1/0"


def test_a_lock_from_the_front_door_excludes(redis_locks: Any) -> None:
    """`lock(...)` finds its engine by alias and locks on a real server."""
    with lock("order", 42) as lease:
        assert lease.name == "order:42"
        seen = redis_locks["default"].show("order:42")
        assert seen is not None
        assert seen.holders[0].fence == lease.fence
    assert redis_locks["default"].show("order:42") is None


def test_the_engine_is_made_when_first_asked_for(settings: Any) -> None:
    """Nothing exists and nothing is connected before."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE}}
    assert locks.all(initialized_only=True) == []
    engine = locks["default"]
    assert isinstance(engine, RedisEngine)
    assert engine.alias == "default"
    assert locks.all(initialized_only=True) == [engine]


def test_all_threads_get_the_same_engine(settings: Any) -> None:
    """Twenty threads ask for one that does not exist yet."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE}}
    start = threading.Barrier(20)
    found = []

    def ask() -> None:
        start.wait()
        found.append(locks["default"])

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len(set(found)) == 1


def test_changed_settings_make_a_new_engine(settings: Any) -> None:
    """Also when only a cache that an engine takes its address from has changed."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE, "OPTIONS": {"ttl": 20}}}
    before = locks["default"]
    settings.LOCKAPP = {"default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"}}
    after = locks["default"]
    assert before is not after
    assert isinstance(after, MemoryEngine)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    assert locks["default"] is not after


def test_a_lease_survives_its_engines_replacement(redis_locks: Any, settings: Any) -> None:
    """What is held can be released after the settings changed."""
    engine = redis_locks["default"]
    lease = lock("order", 1).acquire()
    settings.LOCKAPP = {"default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"}}
    lease.release()
    assert engine.show("order:1") is None
    engine.close()


def test_an_unknown_alias_is_told_with_the_nearest_known(settings: Any) -> None:
    """A typing mistake is no new engine."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE}, "payments": {"LOCATION": NOWHERE}}
    with pytest.raises(ImproperlyConfigured, match="did you mean 'payments'"):
        lock("order", 1, using="payment")


IN_ITS_OWN_PROCESS = """
import sys
from django.conf import settings
settings.configure(DEBUG="debug" in sys.argv, LOCKAPP={"default": {
    "ENGINE": "lockapp.engines.memory.MemoryEngine",
    "OPTIONS": {"single_process": True} if "alone" in sys.argv else {},
}})
from lockapp import lock
with lock("order", 1, on_unavailable="open"):
    print("entered")
"""


@pytest.mark.parametrize(("word", "enters"), [("debug", True), ("alone", True), ("", False)])
def test_locks_that_would_bind_nobody_else_are_refused_in_production(
    word: str, enters: bool
) -> None:
    """A process with nothing but settings: no check and no test runner stands before it."""
    command = [sys.executable, "-c", IN_ITS_OWN_PROCESS, word]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout == "entered\n") == enters == (done.returncode == 0), done.stderr
    if not enters:
        assert "ImproperlyConfigured: LOCKAPP['default'] keeps locks within one" in done.stderr
        assert "single_process" in done.stderr


def test_iteration_yields_the_aliases(settings: Any) -> None:
    """In the order of the settings, without making engines."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE}, "b": {"LOCATION": NOWHERE}}
    assert list(locks) == ["default", "b"]
    assert "b" in locks
    assert "c" not in locks
    assert len(locks) == 2
    assert locks.all(initialized_only=True) == []
    assert [engine.alias for engine in locks.all()] == ["default", "b"]


def test_an_engine_that_can_not_be_closed_keeps_no_other_open(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE}, "b": {"LOCATION": NOWHERE}}
    closed = []

    def fail() -> None:
        raise OSError("stuck")

    monkeypatch.setattr(locks["default"], "close", fail)
    monkeypatch.setattr(locks["b"], "close", lambda: closed.append("b"))
    locks.close_all()
    assert closed == ["b"]
    assert "could not close" in caplog.text


async def test_an_event_loops_connections_are_closed(redis_locks: Any) -> None:
    """`aclose_all()` reaches what the loop has open."""
    async with lock("order", 1):
        pass
    await locks.aclose_all()
    async with lock("order", 1):
        pass
    await locks.aclose_all()


def test_options_that_make_no_sense_name_themselves(settings: Any) -> None:
    """Where the lock is described, not when it is taken."""
    settings.LOCKAPP = {"default": {"LOCATION": NOWHERE}}
    with pytest.raises(TypeError, match="ttl"):
        lock("order", 1, ttl="30")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout"):
        lock("order", 1, timeout=3)  # type: ignore[call-arg]


def test_the_package_exports_the_function_and_not_the_module_of_that_name() -> None:
    """`lockapp/lock.py` exists too, and importing a submodule sets it on its package."""
    code = "import lockapp.lock; from lockapp import lock, Lock; assert callable(lock), lock"
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run(
        [sys.executable, "-c", "from lockapp import lock; assert callable(lock)"], check=True
    )
    assert lockapp.lock is lock


def test_importing_needs_no_settings() -> None:
    """A plain Celery project imports it; using it says what is missing."""
    code = """
import lockapp.handler, lockapp.conf, lockapp.signals
from lockapp import lock
from django.core.exceptions import ImproperlyConfigured
try:
    lock("order", 1)
except ImproperlyConfigured as error:
    assert "settings" in str(error).lower(), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": ""})
