"""`@view_lock`: who is let in, what the others are told, under which key."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import BadRequest, ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View

from lockapp.context import current_details
from lockapp.decorators import view_lock
from lockapp.exceptions import AlreadyHeld, LeaseLost, NotAcquired
from lockapp.handler import lock, locks
from tests.servers import RedisServer
from tests.timing import scaled, stopwatch, wait_until

factory = RequestFactory()


def names_of(*parts: object, **call: Any) -> list[str]:
    """The names locked while a view decorated with these parts runs."""
    seen = []

    @view_lock(*parts)
    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        seen.append(request.lockapp_lease.name)  # type: ignore[attr-defined]
        return HttpResponse()

    request = call.pop("request", None) or factory.get("/")
    assert view(request, **call).status_code == 200
    return seen


class Elsewhere:
    """Holds a lock in another thread until it is told to let go."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts
        self._held = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with lock(*self.parts, why="the test"):
            self._held.set()
            self._end.wait(scaled(20))

    def __enter__(self) -> Elsewhere:
        self._thread.start()
        assert self._held.wait(scaled(5))
        return self

    def __exit__(self, *about: object) -> None:
        self._end.set()
        self._thread.join()


# ------------------------------------------------------------------ exclusion


def test_one_request_at_a_time_per_key(redis_locks: Any) -> None:
    """Ten at once: they queue up, and no two are inside together."""
    inside = 0
    most = 0

    @view_lock("order", "{pk}", wait=10)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.01)
        inside -= 1
        return HttpResponse()

    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(view(factory.post("/"), pk=1).status_code))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 10
    assert most == 1


def test_the_body_never_runs_without_the_lock(redis_locks: Any) -> None:
    """Neither without waiting nor after a wait that ends in vain, and the holder is undisturbed."""
    ran = []

    def view(request: HttpRequest) -> HttpResponse:
        ran.append(1)
        return HttpResponse()

    with Elsewhere("order", 1):
        for wait in (None, 0, 0.1):
            assert view_lock("order", 1, wait=wait)(view)(factory.post("/")).status_code == 409
        assert locks["default"].show("order:1") is not None
    assert ran == []
    assert view_lock("order", 1)(view)(factory.post("/")).status_code == 200


def test_the_lock_is_free_after_an_exception(redis_locks: Any) -> None:
    """Which arrives unchanged."""

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        raise KeyError("the view's own")

    with pytest.raises(KeyError, match="the view's own"):
        view(factory.post("/"))
    assert locks["default"].show("order:1") is None


def test_contention_inside_the_view_is_not_taken_for_its_own(redis_locks: Any) -> None:
    """The view let the client in; what it fails to lock itself is its own affair."""

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        raise NotAcquired("another lock", name="stock:1")

    with pytest.raises(NotAcquired, match="another lock"):
        view(factory.post("/"))


def test_taking_the_same_lock_inside_is_an_error_at_once(redis_locks: Any) -> None:
    """Waiting for it would be waiting for oneself."""

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        with lock("order", 1, wait=10):
            raise AssertionError("unreachable")

    with stopwatch() as watch, pytest.raises(AlreadyHeld):
        view(factory.post("/"))
    assert watch.seconds < scaled(2)


def test_the_setting_view_wait_is_the_default_wait(settings: Any, redis_locks: Any) -> None:
    """In views, not the ten seconds of other locks."""
    options = {**settings.LOCKAPP["default"]["OPTIONS"], "view_wait": 0.2}
    settings.LOCKAPP = {"default": {**settings.LOCKAPP["default"], "OPTIONS": options}}
    with Elsewhere("order", 1), stopwatch() as watch:
        view = view_lock("order", 1)(lambda request: HttpResponse())
        assert view(factory.post("/")).status_code == 409
        assert 0.2 <= watch.seconds < scaled(2)


def test_methods_limits_what_is_locked(redis_locks: Any) -> None:
    """Reading goes on while somebody writes."""
    view = view_lock("order", 1, methods=["post"])(lambda request: HttpResponse())
    with Elsewhere("order", 1):
        assert view(factory.get("/")).status_code == 200
        assert view(factory.post("/")).status_code == 409


@pytest.mark.parametrize("method", ["head", "options"])
def test_head_and_options_are_untouched_unless_named(redis_locks: Any, method: str) -> None:
    """A preflight or a probe neither waits nor makes others wait; it is asked for nothing more."""
    held: list[bool] = []

    def view(request: HttpRequest) -> HttpResponse:
        held.append(locks["default"].show("order:1") is not None)
        return HttpResponse()

    request = getattr(factory, method)("/")
    named = view_lock("order", 1, methods=[method])(view)
    assert view_lock("order", 1)(view)(request).status_code == 200
    assert named(request).status_code == 200
    assert held == [False, True]
    with Elsewhere("order", 1):
        assert view_lock("order", 1)(view)(request).status_code == 200
        assert named(request).status_code == 409


def test_locks_may_be_stacked(redis_locks: Any) -> None:
    """Each decorator takes its own."""
    held = []

    @view_lock("cart", 1)
    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        held.extend(state.name for state in locks["default"].snapshot().locks)
        return HttpResponse()

    assert view(factory.post("/")).status_code == 200
    assert sorted(held) == ["cart:1", "order:1"]


def test_another_engine_may_be_used(settings: Any) -> None:
    """By its alias."""
    memory = {"ENGINE": "lockapp.engines.memory.MemoryEngine"}
    settings.LOCKAPP = {"default": memory, "other": {**memory, "OPTIONS": {"prefix": "other"}}}

    @view_lock("order", 1, using="other", ttl=7, max_hold=60, why="checkout")
    def view(request: HttpRequest) -> HttpResponse:
        assert locks["default"].show("order:1") is None
        state = locks["other"].show("order:1")
        assert state is not None
        assert state.holders[0].ttl_ms == 7000
        assert state.holders[0].description["why"] == "checkout"
        return HttpResponse()

    assert view(factory.post("/")).status_code == 200


# ------------------------------------------------------------------ answers


def test_contended_is_409_as_a_problem_document(redis_locks: Any) -> None:
    """With Retry-After, and without a word about who holds it."""
    view = view_lock("order", 1)(lambda request: HttpResponse())
    with Elsewhere("order", 1):
        answer = view(factory.post("/", headers={"accept": "application/json"}))
    assert answer.status_code == 409
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["Retry-After"] == "1"
    assert answer["Cache-Control"] == "no-store"
    assert answer["Vary"] == "Accept"
    body = json.loads(answer.content)
    assert body.keys() == {"type", "title", "status", "detail"}
    assert (body["type"], body["status"]) == ("urn:lockapp:contended", 409)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/plain; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("image/png", "text/plain; charset=utf-8"),
        ("application/json;q=0.2,text/plain;q=0.9", "text/plain; charset=utf-8"),
    ],
)
def test_people_are_answered_in_plain_text(redis_locks: Any, accept: str, kind: str) -> None:
    """By what the client prefers."""
    view = view_lock("order", 1)(lambda request: HttpResponse())
    with Elsewhere("order", 1):
        assert view(factory.post("/", headers={"accept": accept}))["Content-Type"] == kind


def test_a_dead_server_is_503_and_nothing_is_done(
    settings: Any, fresh_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Never 409, soon, and an operator is told."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    orders = []

    @view_lock("order", 1, wait=30)
    def view(request: HttpRequest) -> HttpResponse:
        orders.append(1)
        return HttpResponse(status=201)

    assert view(factory.post("/")).status_code == 201
    fresh_redis.kill()
    with stopwatch() as watch, caplog.at_level(logging.ERROR, "lockapp"):
        answer = view(factory.post("/"))
    assert watch.seconds < scaled(5)
    assert answer.status_code == 503
    assert answer["Retry-After"] == "5"
    assert json.loads(answer.content)["type"] == "urn:lockapp:unavailable"
    assert orders == [1]
    assert "not let in" in caplog.text
    fresh_redis.start()  # what may have reached it is undone now, and the watchdog ends
    locks.close_all()
    watchdog = "lockapp-watchdog-default"
    wait_until(lambda: watchdog not in [thread.name for thread in threading.enumerate()])


@pytest.mark.parametrize("setting", ["maxmemory", "replica"])
def test_a_server_that_refuses_is_503_too(
    settings: Any, fresh_redis: RedisServer, setting: str
) -> None:
    """Out of memory, or read-only: nobody knows who holds what."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    if setting == "maxmemory":
        fresh_redis.config(maxmemory=1)
    else:
        fresh_redis.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    ran: list[int] = []
    view = view_lock("order", 1)(lambda request: ran.append(1))
    assert view(factory.post("/")).status_code == 503
    assert ran == []


def test_hooks_change_the_answers(settings: Any, redis_locks: Any) -> None:
    """Each gets the error with its fields; None means the usual answer."""
    errors: list[Exception] = []

    def busy(request: HttpRequest, error: NotAcquired) -> HttpResponse:
        errors.append(error)
        return HttpResponse("busy", status=423)

    def down(request: HttpRequest, error: Exception) -> None:
        errors.append(error)

    @view_lock("order", 1, on_contention=busy, on_unavailable=down)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with Elsewhere("order", 1):
        answer = view(factory.post("/"))
    assert (answer.status_code, answer.content) == (423, b"busy")
    held = errors[0]
    assert isinstance(held, NotAcquired)
    assert held.holder.description["why"] == "the test"
    assert 0 < held.retry_after <= 30
    settings.LOCKAPP = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert view(factory.post("/")).status_code == 503
    assert len(errors) == 2


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_a_lease_lost_meanwhile_keeps_the_response(
    redis_locks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What the view did is done; that somebody else may have done it too is logged."""

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        lease = request.lockapp_lease  # type: ignore[attr-defined]
        locks["default"].force_release("order:1", lease.fence, actor="alice", reason="stuck")
        return HttpResponse(status=201)

    with caplog.at_level(logging.WARNING, "lockapp"):
        assert view(factory.post("/")).status_code == 201
    assert "may have been done by two" in caplog.text


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_a_view_may_want_to_hear_of_a_request_or_a_loss(redis_locks: Any) -> None:
    """By a function, or have the request fail although the view succeeded."""
    heard: list[tuple[str, str]] = []

    def view(request: HttpRequest) -> HttpResponse:
        lease = request.lockapp_lease  # type: ignore[attr-defined]
        locks["default"].revoke(lease.name, lease.fence, actor="alice", reason="deploy")
        lease.renew()
        locks["default"].force_release(lease.name, lease.fence, actor="alice", reason="stuck")
        return HttpResponse(status=201)

    listening = view_lock(
        "order", 1,
        on_lost=lambda lease: heard.append(("lost", lease.lost_reason)),
        on_revoke=lambda lease: heard.append(("asked", json.loads(lease.revoke_note)["reason"])),
    )(view)  # fmt: skip
    assert listening(factory.post("/")).status_code == 201
    assert heard == [("asked", "deploy"), ("lost", "forced")]
    with pytest.raises(LeaseLost):
        view_lock("order", 2, on_lost="raise")(view)(factory.post("/"))
    with pytest.raises(ValueError, match="on_lost must be 'raise'"):
        view_lock("order", 1, on_lost="terminate")  # type: ignore[arg-type]


# ------------------------------------------------------------------ who holds it


def test_the_holder_is_described_by_path_and_user(redis_locks: Any) -> None:
    """As far as the user is known already: nothing is loaded for a description."""
    seen: list[dict[str, str]] = []
    before = current_details()

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        state = locks["default"].show("order:1")
        assert state is not None
        seen.append(state.holders[0].description)
        return HttpResponse()

    def load() -> User:
        raise AssertionError("loaded for nothing")

    request = factory.post("/orders/?card=4242")
    request.user = User(pk=17)
    view(request)
    request.user = SimpleLazyObject(load)
    view(request)
    del request.user
    view(request)
    assert [about.get("user") for about in seen] == ["17", None, None]
    assert {about["path"] for about in seen} == {"/orders/"}
    assert current_details() == before


# ------------------------------------------------------------------ keys


def test_a_field_keeps_the_type_of_its_value(redis_locks: Any) -> None:
    """A view and a task that mean the same order lock the same name."""
    number = uuid.UUID(int=7)
    assert names_of("order", "{pk}", pk=42) == ["order:42"]
    assert names_of("order", "{pk}", pk="42") == ["order:'42'"]
    with lock("order", number) as lease:
        name = lease.name
    assert names_of("order", "{pk}", pk=number) == [name]


def test_conversions_bring_two_views_to_one_name(redis_locks: Any) -> None:
    """A form field is text where a URL argument is a number."""
    form = factory.post("/", {"cart": "42", "id": str(uuid.UUID(int=7))})
    assert names_of("cart", "{request.POST[cart]:int}", request=form) == ["cart:42"]
    assert names_of("cart", "{pk:int}", pk=42) == ["cart:42"]
    assert names_of("cart", "{pk:str}", pk=42) == ["cart:'42'"]
    by_form = names_of("cart", "{request.POST[id]:uuid}", request=form)
    assert by_form == names_of("cart", "{pk:uuid}", pk=uuid.UUID(int=7))


def test_fields_reach_attributes_and_items(redis_locks: Any) -> None:
    """Of the request, its user, and URL arguments, which come first."""
    request = factory.post("/", headers={"idempotency-key": "abc"})
    request.user = User(pk=17, username="ada")
    assert names_of("user", "{user.pk}", request=request) == ["user:17"]
    assert names_of("user", "{request.user.username}", request=request) == ["user:ada"]
    assert names_of("user", "{user}", request=request, user="bob") == ["user:bob"]
    with lock("user", request.user) as lease:
        name = lease.name
    assert names_of("user", "{user}", request=request) == [name]
    assert names_of("k", "{request.headers[Idempotency-Key]}", request=request) == ["k:abc"]
    assert names_of("k", "{pair[1]}", pair=("a", "b")) == ["k:b"]


def test_callables_make_any_part(redis_locks: Any) -> None:
    """From the request and the URL arguments."""

    def cart(request: HttpRequest, pk: int) -> int:
        return pk + 1

    assert names_of("cart", cart, pk=1) == ["cart:2"]


def test_positional_arguments_and_defaults_have_names_too(redis_locks: Any) -> None:
    """However the view is called, one key means one name."""
    seen = []

    @view_lock("order", "{pk}", "{page}")
    def view(request: HttpRequest, pk: int, page: int = 1) -> HttpResponse:
        seen.append(request.lockapp_lease.name)  # type: ignore[attr-defined]
        return HttpResponse()

    view(factory.get("/"), 42)
    view(factory.get("/"), 42, 1)
    view(factory.get("/"), pk=42)
    view(factory.get("/"), page=1, pk=42)
    assert seen == ["order:42:1"] * 4


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("{request.POST[cart]}", "missing"),
        ("{request.POST[empty]}", "empty"),
        ("{request.POST[word]:int}", "not a whole number"),
        ("{request.POST[word]:uuid}", "not a UUID"),
        ("{request.POST[broken]}", "part 2"),
        ("{nothing}", "empty"),
        ("{blank}", "empty"),
        ("{flag:int}", "not a whole number"),
        ("{flag:str}", "not text"),
        ("{user}", "login_required"),
        ("{user.pk}", "login_required"),
        (lambda request, **kwargs: None, "part 2 is empty"),
        (lambda request, **kwargs: "", "part 2 is empty"),
    ],
)
def test_a_request_without_a_usable_key_is_bad(settings: Any, part: Any, said: str) -> None:
    """400, and the view does not run: an empty part would be one lock for everybody."""
    ran: list[int] = []
    view = view_lock("order", part)(lambda request, **kwargs: ran.append(1))
    request = factory.post("/", {"empty": "", "word": "1 OR 1"})
    request.POST = request.POST.copy()
    request.POST["broken"] = "\ud800"
    request.user = AnonymousUser()
    with pytest.raises(BadRequest, match=said):
        view(request, nothing=None, blank="", flag=True)
    assert ran == []


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("{absent}", "called without 'absent'"),
        ("{pk.shape}", "int has no attribute 'shape'"),
        ("{pk[shape]}", "int has no items"),
        ("{word.upper}", "is a method"),
        ("{user.pk}", "AuthenticationMiddleware"),
    ],
)
def test_a_template_that_can_not_work_is_the_developers_mistake(part: str, said: str) -> None:
    """Told with the template."""
    view = view_lock("order", part)(lambda request, **kwargs: HttpResponse())
    with pytest.raises(ImproperlyConfigured, match=said):
        view(factory.get("/"), pk=1, word="x")


@pytest.mark.parametrize(
    ("parts", "error", "said"),
    [
        ((), TypeError, "family"),
        (("{pk}",), TypeError, "family"),
        ((1, "{pk}"), TypeError, "family"),
        (("order", None), TypeError, "None"),
        (("order", ""), ValueError, "part 2"),
        (("order", "cart-{pk}"), ValueError, "part of its own"),
        (("order", "{a}{b}"), ValueError, "exactly one field"),
        (("order", "{}"), ValueError, "exactly one field"),
        (("order", "{0}"), ValueError, "exactly one field"),
        (("order", "{pk!r}"), ValueError, "exactly one field"),
        (("order", "{pk:03}"), ValueError, "unknown conversion"),
        (("order", "{pk:float}"), ValueError, "known: int, str, uuid"),
        (("order", "{pk()}"), ValueError, "exactly one field"),
        (("order", "{user.delete()}"), ValueError, "exactly one field"),
        (("order", "{request._messages}"), ValueError, "private"),
        (("order", "{request.__class__}"), ValueError, "private"),
        (("order", "{_pk}"), ValueError, "private"),
        (("order", "{request}"), ValueError, "a request is no key"),
        (("order", "{pk"), ValueError, "exactly one field"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused_at_decoration(
    parts: tuple[object, ...], error: type[Exception], said: str
) -> None:
    """Not at the first request."""
    with pytest.raises(error, match=said):
        view_lock(*parts)


def test_a_field_that_the_view_does_not_have_is_refused_at_decoration() -> None:
    """With the arguments that it has."""

    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(ValueError, match="no argument 'order_id', only request, pk"):
        view_lock("order", "{order_id}")(view)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl": 0}, ValueError),
        ({"ttl": "30"}, TypeError),
        ({"ttl": True}, TypeError),
        ({"wait": -1}, ValueError),
        ({"wait": float("inf")}, ValueError),
        ({"max_hold": float("nan")}, ValueError),
        ({"methods": "POST"}, TypeError),
        ({"methods": []}, ValueError),
    ],
)
def test_numbers_are_validated_at_decoration(options: Any, error: type[Exception]) -> None:
    """In the line that wrote them."""
    with pytest.raises(error, match=next(iter(options))):
        view_lock("order", "{pk}", **options)


# ------------------------------------------------------------------ shapes


def test_a_method_is_decorated_by_way_of_method_decorator(redis_locks: Any) -> None:
    """dispatch, or one method."""

    class Order(View):
        @method_decorator(view_lock("order", "{pk}"))
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse(str(locks["default"].show("order:1") is not None))

        def get(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse(str(locks["default"].show("order:1") is not None))

    @method_decorator(view_lock("order", "{pk}"), name="dispatch")
    class Whole(Order):
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return self.get(request, pk)

    assert Order.as_view()(factory.post("/"), pk=1).content == b"True"
    assert Order.as_view()(factory.get("/"), pk=1).content == b"False"
    assert Whole.as_view()(factory.get("/"), pk=1).content == b"True"
    assert view_lock("order", "{pk}")(Order.as_view())(factory.get("/"), pk=1).content == b"True"


def wrong_shapes() -> list[tuple[Callable[[], Any], str]]:
    class Order(View):
        pass

    async def streaming(request: HttpRequest) -> Any:
        yield HttpResponse()

    def generator(request: HttpRequest) -> Any:
        yield HttpResponse()

    class Pages:
        async def __call__(self, request: HttpRequest) -> Any:
            yield b"page"

    def method(self: Any, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    async def later(request: HttpRequest, error: Exception) -> None: ...

    def plain(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    locked: Any = view_lock
    return [
        (lambda: locked("order", 1)(Order), "class Order"),
        (lambda: locked("order", 1)(streaming), "generator"),
        (lambda: locked("order", 1)(generator), "generator"),
        (lambda: locked("order", 1)(partial(streaming)), "generator"),
        (lambda: locked("order", 1)(Pages()), "generator"),
        (lambda: locked("order", 1)(method), "method_decorator"),
        (lambda: locked("order", 1)(3), "decorates views"),
        (lambda: locked(plain), "needs to know what to lock"),
        (lambda: locked("order", 1, on_contention=later)(plain), "asynchronous"),
        (lambda: locked("order", later)(plain), "asynchronous"),
    ]


@pytest.mark.parametrize(("decorate", "said"), wrong_shapes())
def test_wrong_shapes_are_refused_at_decoration(decorate: Callable[[], Any], said: str) -> None:
    """What would run without the lock, or never."""
    with pytest.raises(TypeError, match=said):
        decorate()


def test_the_views_own_marks_are_kept() -> None:
    """Name, and what other decorators have set."""
    from django.views.decorators.csrf import csrf_exempt

    @view_lock("order", 1)
    @csrf_exempt
    def create_order(request: HttpRequest) -> HttpResponseBase:
        """Order."""
        return HttpResponse()

    assert create_order.__name__ == "create_order"
    assert create_order.__doc__ == "Order."
    assert create_order.csrf_exempt


def test_a_waiting_request_is_let_in_when_the_holder_leaves(redis_locks: Any) -> None:
    """Woken, not after its next poll."""
    view = view_lock("order", 1, wait=10)(lambda request: HttpResponse())
    answers: list[int] = []
    with Elsewhere("order", 1):
        thread = threading.Thread(
            target=lambda: answers.append(view(factory.post("/")).status_code)
        )
        thread.start()

        def waiting() -> bool:
            state = locks["default"].show("order:1")
            return state is not None and state.waiter_count == 1

        wait_until(waiting)
        assert answers == []
    thread.join()
    assert answers == [200]
