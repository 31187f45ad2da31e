"""`@idempotent_view`: what is done once, what is answered again, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.exceptions import BadRequest, ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory, TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View

from lockapp import idempotency
from lockapp.decorators import idempotent_view, view_lock
from lockapp.handler import lock, locks
from lockapp.idempotency import STORED_HEADERS, BadKey, parse_key
from lockapp.models import IdempotencyRecord
from tests.servers import RedisServer
from tests.timing import scaled, stopwatch, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

factory = RequestFactory()
ANYBODY = {"scope": lambda request: "anybody"}


def post(key: str | None = "k", path: str = "/pay/", data: Any = "{}", **more: Any) -> HttpRequest:
    """A request of a client that sends this key."""
    headers = {"Accept": "application/json", **({} if key is None else {"Idempotency-Key": key})}
    request = factory.post(
        path, data, **{"content_type": "application/json", **more}, headers=headers
    )
    request.user = AnonymousUser()
    return request


def made(request: HttpRequest, **answer: Any) -> HttpResponse:
    """The side effect: one group more."""
    group = Group.objects.create(name=f"group {Group.objects.count()}")
    return HttpResponse(group.name, **{"status": 201, "content_type": "text/plain", **answer})


def problem(response: HttpResponseBase) -> tuple[int, str]:
    assert isinstance(response, HttpResponse)
    assert response["Content-Type"] == "application/problem+json"
    return response.status_code, json.loads(response.content)["type"]


# ------------------------------------------------------------------ the header


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("8e03978e-40d5", "8e03978e-40d5"), ('"8e03978e-40d5"', "8e03978e-40d5"),
        (r'"a \"b\" \\"', r'a "b" \ '.strip()), (" k ", "k"), ("k" * 255, "k" * 255),
    ],
)  # fmt: skip
def test_a_key_is_a_quoted_string_or_bare_text(text: str, key: str) -> None:
    """Both ways of spelling it are the same key."""
    assert parse_key(text) == key


@pytest.mark.parametrize(
    "text", [None, "", " ", '""', '"a', "a b", '"a"b"', r'"\a"', "k" * 256, "é", '"é"', "a\tb"]
)
def test_what_is_no_key_is_refused(text: str | None) -> None:
    """Nothing is guessed."""
    with pytest.raises(BadKey):
        parse_key(text)


def test_without_a_key_nothing_is_done() -> None:
    """400, and no Retry-After: trying again won't help."""
    view = idempotent_view(**ANYBODY)(made)
    for key in (None, "", "a b"):
        response = view(post(key))
        assert problem(response) == (400, "urn:lockapp:idempotency-key")
        assert "Retry-After" not in response
    assert not Group.objects.exists()


def test_other_methods_need_no_key() -> None:
    """They run as they would without the decorator."""
    view = idempotent_view(**ANYBODY)(made)
    assert view(factory.get("/")).content == b"group 0"
    assert view(factory.get("/")).content == b"group 1"
    everything = idempotent_view(**ANYBODY, methods=None)(made)
    assert everything(factory.get("/")).status_code == 400


# ------------------------------------------------------------------ once


def test_it_is_done_once_and_answered_again() -> None:
    """With the documented headers, and a header that says so; never a cookie."""

    @idempotent_view(**ANYBODY)
    def view(request: HttpRequest) -> HttpResponse:
        given = {name: f"a {name}" for name in STORED_HEADERS[1:]}
        response = made(request, headers={**given, "X-Other": "x"})
        response.set_cookie("session", "secret")
        return response

    first, again = view(post()), view(post('"k"'))
    assert (first.status_code, first.content) == (201, b"group 0")
    assert (again.status_code, again.content) == (201, b"group 0")
    assert "Idempotent-Replayed" not in first
    assert again["Idempotent-Replayed"] == "true"
    assert [again[name] for name in STORED_HEADERS] == [first[name] for name in STORED_HEADERS]
    assert "X-Other" not in again
    assert not again.cookies
    assert first.cookies
    assert view(post("other")).content == b"group 1"
    assert Group.objects.count() == 2


def test_the_same_key_with_another_payload_is_422() -> None:
    """Of body, query, type and method each."""
    view = idempotent_view(**ANYBODY, methods=["POST", "PUT"])(made)
    view(post(data='{"a": 1}'))
    others = [
        post(data='{"a": 2}'),
        post(data='{"a": 1}', path="/pay/?to=b"),
        post(data='{"a": 1}', content_type="text/plain"),
        factory.put("/pay/", '{"a": 1}', content_type="application/json",
                    headers={"Idempotency-Key": "k", "Accept": "application/json"}),
    ]  # fmt: skip
    for other in others:
        assert problem(view(other)) == (422, "urn:lockapp:idempotency-payload")
    assert view(post(data='{"a": 1}')).content == b"group 0"
    assert Group.objects.count() == 1


def test_a_form_with_files_is_compared_by_what_it_says() -> None:
    """A client chooses a new boundary for each attempt; and the view can read the files."""

    @idempotent_view(**ANYBODY)
    def view(request: HttpRequest) -> HttpResponse:
        (file,) = request.FILES.getlist("file")
        return made(request, content_type=f"text/{file.read().decode()}{request.POST['a']}")

    def form(boundary: str, text: str) -> HttpRequest:
        lines = [
            f"--{boundary}", 'Content-Disposition: form-data; name="a"', "", "1",
            f"--{boundary}", 'Content-Disposition: form-data; name="file"; filename="f"', "", text,
            f"--{boundary}--", "",
        ]  # fmt: skip
        kind = f"multipart/form-data; boundary={boundary}"
        return post(data="\r\n".join(lines).encode(), content_type=kind)

    first = view(form("one", "x"))
    assert first["Content-Type"] == "text/x1"
    assert view(form("two", "x"))["Idempotent-Replayed"] == "true"
    assert view(form("two", "y")).status_code == 422


def test_what_counts_as_the_payload_can_be_chosen() -> None:
    """Beside method and path."""
    view = idempotent_view(**ANYBODY, fingerprint=lambda request: request.GET["order"])(made)
    assert view(post(data="1", path="/?order=7")).content == b"group 0"
    assert view(post(data="2", path="/?order=7")).content == b"group 0"
    assert view(post(data="1", path="/?order=8")).status_code == 422


def test_a_key_belongs_to_its_user_and_path() -> None:
    """Of an anonymous client to its session; without one nobody knows whose it is."""
    view = idempotent_view()(made)

    def of(user: Any, path: str = "/pay/", session: str | None = None) -> HttpRequest:
        request = post(path=path)
        request.user = user
        request.session = type("Session", (), {"session_key": session})()
        return request

    ann, bob = User.objects.create(username="ann"), User.objects.create(username="bob")
    nobody = AnonymousUser()
    seen = [
        view(of(ann)), view(of(bob)), view(of(ann, "/refund/")),
        view(of(nobody, session="a")), view(of(nobody, session="b")), view(of(ann)),
    ]  # fmt: skip
    assert [one.content for one in seen] == [*(b"group %d" % n for n in range(5)), b"group 0"]
    with pytest.raises(BadRequest, match="scope="):
        view(of(nobody))
    with pytest.raises(BadRequest, match="whose key"):
        idempotent_view(scope=lambda request: "")(made)(post())


def test_an_answer_that_has_expired_is_given_no_more() -> None:
    """The key is a new one then."""
    view = idempotent_view(**ANYBODY, keep=60)(made)
    view(post())
    (record,) = IdempotencyRecord.objects.all()
    assert record.expires_at - record.created_at == timedelta(seconds=60)
    IdempotencyRecord.objects.update(expires_at=timezone.now())
    assert view(post(data="another")).content == b"group 1"
    assert IdempotencyRecord.objects.count() == 1


def test_the_key_for_other_services_stays_the_same() -> None:
    """For each attempt, whatever it carries; another one for another purpose or another key."""
    seen: list[str] = []

    @idempotent_view(**ANYBODY)
    def view(request: HttpRequest) -> HttpResponse:
        mark = request.lockapp_idempotency  # type: ignore[attr-defined]
        seen.extend([mark.derive("charge"), mark.derive("charge", "2"), mark.key])
        raise RuntimeError

    for key, data in (("k", "1"), ("k", "2"), ("other", "1")):
        with pytest.raises(RuntimeError):
            view(post(key, data=data))
    assert seen[0:3] == seen[3:6]
    assert len({*seen[0:2], *seen[6:8]}) == 4
    assert all(len(derived) == 40 for derived in (*seen[0:2], *seen[6:8]))
    assert seen[2::3] == ["k", "k", "other"]


# ------------------------------------------------------------------ what is not stored


def raising(request: HttpRequest) -> HttpResponse:
    made(request)
    raise RuntimeError("provider is down")


def streaming(request: HttpRequest) -> HttpResponseBase:
    made(request)
    return StreamingHttpResponse(iter([b"a"]))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (raising, (RuntimeError, "provider")),
        (streaming, (TypeError, "streaming response")),
        (lambda request: made(request).content, (TypeError, "no HttpResponse")),
        (lambda request: HttpResponse(made(request).content * 100), (ValueError, "max_body=600")),
        (lambda request: made(request, status=500), None),
        (lambda request: made(request, status=503), None),
        (lambda request: made(request, status=429, headers={"Retry-After": "1"}), None),
    ],
)
def test_what_is_not_stored_is_not_done(body: Any, error: tuple[Any, str] | None) -> None:
    """Rolled back, so that the client may try again."""
    view = idempotent_view(**ANYBODY, max_body=600)(lambda request: body(request))
    for _ in range(2):
        if error is None:
            assert view(post()).status_code >= 429
        else:
            with pytest.raises(error[0], match=error[1]):
                view(post())
        assert not Group.objects.exists()
        assert not IdempotencyRecord.objects.exists()
    working = idempotent_view(**ANYBODY)(made)
    assert working(post()).status_code == 201


def test_a_refusal_of_the_view_is_stored() -> None:
    """With what it wrote: that is its answer."""
    view = idempotent_view(**ANYBODY)(lambda request: made(request, status=402))
    assert [view(post()).content for _ in range(2)] == [b"group 0", b"group 0"]


def test_a_template_is_rendered_inside() -> None:
    """What is stored is what the client got."""
    text = engines["django"].from_string("Hello {{ name }}")

    @idempotent_view(**ANYBODY)
    def view(request: HttpRequest) -> HttpResponse:
        return TemplateResponse(request, text, {"name": made(request).content.decode()})

    assert [view(post()).content for _ in range(2)] == [b"Hello group 0"] * 2


def test_a_view_that_marks_its_transaction_is_rolled_back() -> None:
    """As DRF does for an exception that it answers; the answer is given, and not stored."""

    @idempotent_view(**ANYBODY)
    def view(request: HttpRequest) -> HttpResponse:
        response = made(request, status=400)
        transaction.set_rollback(True)
        return response

    assert [view(post()).status_code for _ in range(2)] == [400, 400]
    assert not Group.objects.exists()
    assert not IdempotencyRecord.objects.exists()


# ------------------------------------------------------------------ while the first is at work


def while_one_is_inside(view: Any, do: Callable[[], Any], inside: threading.Event) -> Any:
    """Send the same request from another thread, and do something while it is inside."""
    first: list[Any] = []

    def run() -> None:
        try:
            first.append(view(post()))
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(20)
    try:
        return do(), first
    finally:
        go_on.set()
        thread.join()


go_on = threading.Event()


def test_a_duplicate_meanwhile_is_409_and_a_hook_can_change_it(redis_locks: Any) -> None:
    """With Retry-After; nothing is written."""
    inside = threading.Event()
    go_on.clear()

    def slow(request: HttpRequest) -> HttpResponse:
        inside.set()
        assert go_on.wait(20)
        return made(request)

    view = idempotent_view(**ANYBODY)(slow)
    hooked = idempotent_view(**ANYBODY, on_contention=lambda *_: HttpResponse("wait", status=409))

    def twice() -> tuple[HttpResponseBase, HttpResponseBase]:
        return view(post()), hooked(slow)(post())

    (plain, own), first = while_one_is_inside(view, twice, inside)
    assert problem(plain) == (409, "urn:lockapp:contended")
    assert int(plain["Retry-After"]) >= 1
    assert own.content == b"wait"
    assert [one.status_code for one in first] == [201]
    assert Group.objects.count() == 1


@pytest.fixture
def no_server(settings: Any, fresh_redis: RedisServer) -> Iterator[None]:
    """Locks on a server that is down; it is back at the end, to be told what ran without it."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": fresh_redis.url,
            "OPTIONS": {"prefix": "down"},
        }
    }
    fresh_redis.kill()
    yield
    fresh_redis.start()
    backlog = locks["default"].sync.watchdog._backlog
    wait_until(lambda: not backlog, limit_s=15, what="the report")
    locks.close_all()


def test_without_the_engine_a_duplicate_does_not_wait_for_ever(
    no_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the record: then it is told the same, and nothing is done twice."""
    monkeypatch.setattr(idempotency, "ROW_WAIT_S", 0.2)
    inside = threading.Event()
    go_on.clear()

    def slow(request: HttpRequest) -> HttpResponse:
        inside.set()
        assert go_on.wait(20)
        return made(request)

    view = idempotent_view(**ANYBODY)(slow)
    with stopwatch() as watch:
        busy, first = while_one_is_inside(view, lambda: view(post()), inside)
    assert problem(busy) == (409, "urn:lockapp:contended")
    assert watch.seconds < scaled(5)
    assert [one.status_code for one in first] == [201]
    assert view(post())["Idempotent-Replayed"] == "true"


# ------------------------------------------------------------------ where it can be put


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATOMIC_REQUESTS for the default database."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def test_under_atomic_requests_it_opens_the_transaction_itself(atomic_requests: None) -> None:
    """The others of its methods too get the one that they would have had."""
    view = idempotent_view(**ANYBODY)(
        lambda request: HttpResponse(
            str(connection.in_atomic_block) + made(request).content.decode()
        )
    )
    handled = BaseHandler().make_view_atomic(view)
    assert [handled(post()).content for _ in range(2)] == [b"Truegroup 0"] * 2
    assert handled(factory.get("/")).content == b"Truegroup 1"
    exempt = idempotent_view(**ANYBODY)(
        transaction.non_atomic_requests(
            lambda request: HttpResponse(str(connection.in_atomic_block))
        )
    )
    assert BaseHandler().make_view_atomic(exempt)(factory.get("/")).content == b"False"


def test_inside_an_open_transaction_it_refuses() -> None:
    """The lock would be released, and the answer given, before the commit."""
    view = idempotent_view(**ANYBODY)(made)
    with transaction.atomic(), pytest.raises(ImproperlyConfigured, match="@idempotent_view was"):
        view(post())


def test_a_class_based_view_by_method_decorator() -> None:
    """On dispatch."""

    @method_decorator(idempotent_view(**ANYBODY), name="dispatch")
    class Pay(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return made(request)

        def get(self, request: HttpRequest) -> HttpResponse:
            return made(request)

    view = Pay.as_view()
    assert [view(post()).content for _ in range(2)] == [b"group 0"] * 2
    assert view(factory.get("/")).content == b"group 1"


def test_below_a_view_lock_it_works_and_above_it_refuses() -> None:
    """The transaction is opened inside both locks."""
    locked = view_lock("cart", 1)(idempotent_view(**ANYBODY)(made))
    assert [locked(post()).content for _ in range(2)] == [b"group 0"] * 2
    with pytest.raises(ValueError, match="put @view_lock above"):
        idempotent_view(**ANYBODY)(view_lock("cart", 1)(made))
    with pytest.raises(ValueError, match="only once"):
        idempotent_view(**ANYBODY)(idempotent_view(**ANYBODY)(made))


async def async_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class AsyncView(View):
    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def test_what_cannot_be_stored_is_refused_where_it_is_decorated() -> None:
    """With the cure."""
    for view in (async_view, AsyncView.as_view()):
        with pytest.raises(TypeError, match="synchronous"):
            idempotent_view()(view)
    with pytest.raises(TypeError, match="method_decorator\\(idempotent_view"):
        idempotent_view()(AsyncView)
    with pytest.raises(ValueError, match="keep"):
        idempotent_view(keep=0)
    with pytest.raises(ValueError, match="max_body"):
        idempotent_view(max_body=-1)
    with pytest.raises(TypeError, match="@idempotent_view: methods"):
        idempotent_view(methods="POST")

    @wraps(made)
    def hides(request: HttpRequest) -> Any:
        return async_view(request)

    with pytest.raises(TypeError, match="coroutine"):
        idempotent_view(**ANYBODY)(hides)(post())


class InATestCase(TestCase):
    """Django's TestCase opens a transaction round each test, which is nobody's."""

    def test_it_works_as_ever(self) -> None:
        """What is rolled back is the view's own."""
        Group.objects.create(name="of the test")
        view = idempotent_view(**ANYBODY)(made)
        assert [view(post()).content for _ in range(2)] == [b"group 1"] * 2
        failing = idempotent_view(**ANYBODY)(lambda request: made(request, status=500))
        assert failing(post("other")).status_code == 500
        assert Group.objects.count() == 2


# ------------------------------------------------------------------ the records


def expire(count: int) -> None:
    """Leave so many records that have expired, and one that has not."""
    view = idempotent_view(**ANYBODY)(lambda request: HttpResponse("secret answer"))
    for number in range(count + 1):
        view(post(f"key-{number}"))
    old = IdempotencyRecord.objects.exclude(key="key-0")
    old.update(expires_at=timezone.now() - timedelta(seconds=1))


def test_what_has_expired_is_pruned_in_batches() -> None:
    """By the manager, and by the command."""
    expire(5)
    with CaptureQueriesContext(connection) as seen:
        assert IdempotencyRecord.objects.prune(batch=2) == 5
    assert len([one for one in seen.captured_queries if "DELETE" in one["sql"]]) == 3
    assert [record.key for record in IdempotencyRecord.objects.all()] == ["key-0"]


def test_the_command_prunes(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the database that it is told."""
    expire(2)
    call_command("lockapp", "prune", "--database", "default")
    assert capsys.readouterr().out == "2 expired idempotency records removed\n"
    assert IdempotencyRecord.objects.count() == 1


def test_the_admin_lists_records_and_not_their_answers() -> None:
    """To be read, by who may."""
    expire(1)
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))
    text = boss.get(reverse("admin:lockapp_idempotencyrecord_changelist")).content.decode()
    assert "key-0" in text
    assert "/pay/" in text
    row = IdempotencyRecord.objects.get(key="key-0")
    page = boss.get(reverse("admin:lockapp_idempotencyrecord_change", args=[row.pk]))
    assert "key-0" in page.content.decode()
    assert "secret" not in page.content.decode()
    assert 'name="_save"' not in page.content.decode()
    gone = boss.post(reverse("admin:lockapp_idempotencyrecord_delete", args=[row.pk]))
    assert gone.status_code == 403


def test_an_engine_that_is_held_by_another_key_does_not_matter(redis_locks: Any) -> None:
    """Each key has a lock of its own."""
    with lock("idempotency", "another"):
        assert idempotent_view(**ANYBODY)(made)(post()).status_code == 201
