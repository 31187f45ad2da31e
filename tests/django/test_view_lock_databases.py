"""`@view_lock` over several databases under ATOMIC_REQUESTS: the lock outlasts the last COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group
from django.core.handlers.base import BaseHandler
from django.db import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from lockapp.audit.collector import collect
from lockapp.decorators import view_lock
from lockapp.fencing import in_transaction
from lockapp.handler import lock, locks
from lockapp.models import LockEvent
from lockapp.testing import assert_not_locked
from tests.django.fence_places import ALIAS, Place
from tests.django.fencing_child import WORDS
from tests.timing import scaled, stopwatch

pytestmark = pytest.mark.django_db(transaction=True)
factory = RequestFactory()


@pytest.fixture
def other(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A second database, of each kind; both are under ATOMIC_REQUESTS."""
    with place.opened() as opened:
        with opened.cursor() as cursor:
            cursor.execute(f"DELETE FROM {WORDS}")
        opened.settings_dict["ATOMIC_REQUESTS"] = True
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        # Once it is open: a test may not connect to a database that Django has not given it.
        monkeypatch.setitem(connections.settings, ALIAS, opened.settings_dict)
        yield opened


def words() -> list[str]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(f"SELECT word FROM {WORDS}")
        return [row[0] for row in cursor.fetchall()]


def write(word: str) -> None:
    Group.objects.create(name=word)
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(f"INSERT INTO {WORDS} VALUES (%s, %s)", [word, word])


def handled(view: Any) -> HttpResponse:
    """Call a view as Django's handler does."""
    answer: HttpResponse = BaseHandler().make_view_atomic(view)(factory.post("/"))
    return answer


def test_the_lock_is_held_at_every_commit(
    other: Any, redis_locks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And free after the last."""
    held: list[tuple[str, bool]] = []

    def watch(one: Any) -> None:
        commit = one.commit

        def watched() -> None:
            held.append((one.alias, locks["default"].show("order:1") is not None))
            commit()

        monkeypatch.setattr(one, "commit", watched)

    for one in (connections["default"], other):
        one.ensure_connection()
        watch(one)

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        assert in_transaction(connection)
        assert in_transaction(other)
        write("one")
        return HttpResponse()

    assert handled(view).status_code == 200
    assert sorted(held) == [("default", True), (ALIAS, True)]
    assert_not_locked("order", 1)
    assert (Group.objects.count(), words()) == (1, ["one"])


def test_an_exception_rolls_back_each_before_the_release(other: Any, redis_locks: Any) -> None:
    """Nothing is written, and nobody waits."""

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        write("one")
        raise KeyError("no")

    with pytest.raises(KeyError):
        handled(view)
    assert_not_locked("order", 1)
    assert (Group.objects.count(), words()) == (0, [])


@pytest.mark.parametrize("exempt", ["default", ALIAS])
def test_a_view_may_be_exempt_for_one_of_them(other: Any, redis_locks: Any, exempt: str) -> None:
    """The other one has its transaction, inside the lock."""

    @view_lock("order", 1)
    @transaction.non_atomic_requests(using=exempt)
    def view(request: HttpRequest) -> HttpResponse:
        found = [one.alias for one in (connection, other) if in_transaction(one)]
        return HttpResponse(" ".join(found))

    expected = {"default": ALIAS, ALIAS: "default"}[exempt]
    assert handled(view).content.decode() == expected


def test_a_lock_inside_waits_for_the_last_of_them(other: Any, redis_locks: Any) -> None:
    """Of those that are open where it is given back, without a decorator as well."""

    def view(request: HttpRequest) -> HttpResponse:
        with lock("order", 1):
            write("one")
        return HttpResponse(str(locks["default"].show("order:1") is not None))

    assert handled(view).content == b"True"
    assert_not_locked("order", 1)


# ------------------------------------------------------------------ a broken transaction


@view_lock("group", "{name}")
def create(request: HttpRequest, name: str) -> HttpResponse:
    """Fails in the database where the group exists, and leaves its transaction broken."""
    try:
        Group.objects.create(name=name)
    except IntegrityError:
        if request.GET:
            return HttpResponse("exists", status=422)  # the transaction goes on being broken
        raise
    return HttpResponse(status=201)


urlpatterns = [path("groups/<str:name>/", create)]


@pytest.mark.parametrize("answers_itself", [False, True])
def test_a_broken_transaction_frees_the_lock_and_is_in_the_audit_log(
    settings: Any, redis_locks: Any, monkeypatch: pytest.MonkeyPatch, answers_itself: bool
) -> None:
    """The client sees the database's error and no other; both ends of the lease are recorded."""
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    Group.objects.create(name="staff")
    url = "/groups/staff/" + ("?answer=1" if answers_itself else "")
    if answers_itself:
        assert Client().post(url).status_code == 422
    else:
        with pytest.raises(IntegrityError):
            Client().post(url)
    assert_not_locked("group", "staff")
    assert Client().post("/groups/admins/").status_code == 201
    collect(locks["default"])
    recorded = LockEvent.objects.order_by("number").values_list("name", "kind")
    assert list(recorded) == [
        ("group:staff", "acquired"), ("group:staff", "released"),
        ("group:admins", "acquired"), ("group:admins", "released"),
    ]  # fmt: skip


@contextmanager
def missing_table() -> Iterator[None]:
    with connection.schema_editor() as editor:
        editor.delete_model(LockEvent)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(LockEvent)


@contextmanager
def database_down() -> Iterator[None]:
    connection.close()
    with mock.patch.object(connection, "connect", side_effect=OperationalError("refused")):
        yield


@pytest.mark.parametrize("trouble", [missing_table, database_down])
def test_an_audit_log_that_can_not_be_written_changes_nothing_for_a_lock(
    redis_locks: Any, trouble: Callable[[], AbstractContextManager[None]]
) -> None:
    """Views are locked and answered as ever; what happened is stored when it can be."""

    @view_lock("group", 1)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=201)

    with trouble():
        with stopwatch() as watch:
            assert view(factory.post("/")).status_code == 201
        assert watch.seconds < scaled(2)
        assert_not_locked("group", 1)
        with pytest.raises(DatabaseError):
            collect(locks["default"])
    assert collect(locks["default"]).stored == 2
