"""Locked views of Django REST framework, as its users write them. lockapp does not know it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.http import HttpRequest
from django.urls import include, path
from django.utils.decorators import method_decorator
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.test import APIClient
from rest_framework.views import APIView, exception_handler, set_rollback
from rest_framework.viewsets import ViewSet

from lockapp.decorators import lock_answer, view_lock
from lockapp.exceptions import EngineUnavailable
from lockapp.handler import lock, locks
from lockapp.mixins import LockedViewMixin
from lockapp.testing import held_by_other, override_engine


def answer(request: Any, **more: Any) -> Response:
    held = sorted(state.name for state in locks["default"].snapshot().locks)
    return Response({"held": held, "atomic": connection.in_atomic_block, **more})


class TokenAuthentication(BaseAuthentication):
    """Knows the user by a header, as token authentication does."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        number = request.headers.get("X-User")
        return (User(pk=int(number)), None) if number else None


class Mixed(LockedViewMixin, APIView):
    """By the mixin: the lock is taken before REST framework looks at the request."""

    lock_key = ("order", "{pk}")

    def post(self, request: Request, pk: int) -> Response:
        return answer(request, data=request.data)


class ByBody(LockedViewMixin, APIView):
    """The key stands in the body, which is read before REST framework does so."""

    def get_lock_key(self) -> Any:
        return "order", json.loads(self.request.body)["order"]

    def post(self, request: Request) -> Response:
        return answer(request, data=request.data)


class ByForm(LockedViewMixin, APIView):
    lock_key = ("order", "{request.POST[order]:int}")

    def post(self, request: Request) -> Response:
        return answer(request, data=request.data)


class OneMethod(APIView):
    """By a decorator of the method: the lock is taken after permissions were checked."""

    authentication_classes = [TokenAuthentication]
    permission_classes = [IsAuthenticated]

    @method_decorator(view_lock("order", "{request.data[order]}", "{user.pk}"))
    def post(self, request: Request) -> Response:
        return answer(request, data=request.data)


@view_lock("order", "{pk}")
@api_view(["POST"])
def above(request: Request, pk: int) -> Response:
    return answer(request, data=request.data)


@api_view(["POST"])
@view_lock("order", "{pk}")
def below(request: Request, pk: int) -> Response:
    return answer(request, data=request.data)


class Orders(ViewSet):
    @action(detail=True, methods=["post"])
    @method_decorator(view_lock("order", "{pk:int}"))
    def capture(self, request: Request, pk: str) -> Response:
        return answer(request, data=request.data)

    def list(self, request: Request) -> Response:
        return answer(request)


class LockedOrders(LockedViewMixin, ViewSet):
    lock_key = ("orders", "all")
    lock_options = {"methods": ["POST"]}

    def create(self, request: Request) -> Response:
        return answer(request, data=request.data)

    def list(self, request: Request) -> Response:
        return answer(request)


class Inside(APIView):
    """Takes the lock itself, and leaves the answer to the exception handler."""

    def post(self, request: Request, pk: int) -> Response:
        with lock("order", pk, wait=0):
            return answer(request)

    def get_exception_handler(self) -> Any:
        return handle


def handle(error: Exception, context: dict[str, Any]) -> Any:
    locked = lock_answer(context["request"], error)
    if locked is None:
        return exception_handler(error, context)
    set_rollback()
    return locked


router = SimpleRouter()
router.register("orders", Orders, basename="order")
router.register("locked", LockedOrders, basename="locked")
urlpatterns = [
    path("mixed/<int:pk>/", Mixed.as_view()),
    path("by-body/", ByBody.as_view()),
    path("by-form/", ByForm.as_view()),
    path("one-method/", OneMethod.as_view()),
    path("above/<int:pk>/", above),
    path("below/<int:pk>/", below),
    path("inside/<int:pk>/", Inside.as_view()),
    path("", include(router.urls)),
]


@pytest.fixture(autouse=True)
def api(settings: Any) -> Iterator[APIClient]:
    """A client of these views, which raises what they raise."""
    settings.ROOT_URLCONF = __name__
    settings.REST_FRAMEWORK = {
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
    }
    client = APIClient()
    client.default_format = "json"
    with override_engine():
        yield client


KINDS = ["mixed/7/", "above/7/", "below/7/", "orders/7/capture/"]


@pytest.mark.parametrize("url", KINDS)
def test_each_kind_of_view_is_locked_and_reads_its_body(api: APIClient, url: str) -> None:
    """Function, class and action; the others get 409 with Retry-After, and the body stays whole."""
    body = {"amount": 5, "lines": [1, 2]}
    found = api.post(f"/{url}", body).json()
    assert (found["held"], found["data"]) == (["order:7"], body)
    with held_by_other("order", 7):
        refused = api.post(f"/{url}", body)
    assert (refused.status_code, refused["Retry-After"]) == (409, "1")
    assert refused["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:lockapp:contended"


@pytest.mark.parametrize("url", [*KINDS, "inside/7/"])
def test_a_server_that_is_down_is_503(api: APIClient, url: str) -> None:
    """Also from an exception handler."""
    with override_engine({"LOCATION": "redis://127.0.0.1:1/0"}):
        down = api.post(f"/{url}", {})
    assert (down.status_code, down["Retry-After"]) == (503, "5")


def test_a_key_in_the_body_leaves_the_body_to_the_view(api: APIClient) -> None:
    """JSON that was read for the key, and a form."""
    body = {"order": 7, "amount": 5}
    found = api.post("/by-body/", body).json()
    assert (found["held"], found["data"]) == (["order:7"], body)
    found = api.post("/by-form/", {"order": "7"}, format="multipart").json()
    assert (found["held"], found["data"]) == (["order:7"], {"order": "7"})


def test_a_locked_method_knows_rest_frameworks_request(api: APIClient) -> None:
    """Its parsed data and its user; who may not come in is not told that somebody is inside."""
    body = {"order": 7}
    found = api.post("/one-method/", body, headers={"x-user": "17"}).json()
    assert (found["held"], found["data"]) == (["order:7:17"], body)
    with held_by_other("order", 7, 17):
        assert api.post("/one-method/", body).status_code == 403
        assert api.post("/one-method/", body, headers={"x-user": "17"}).status_code == 409


def test_a_view_set_is_locked_as_a_whole_but_for_the_methods_left_out(api: APIClient) -> None:
    """With its actions as the router makes them."""
    assert api.post("/locked/", {}).json()["held"] == ["orders:all"]
    with held_by_other("orders", "all"):
        assert api.post("/locked/", {}).status_code == 409
        assert api.get("/locked/").status_code == 200
        assert api.options("/locked/").status_code == 200


def test_an_exception_handler_maps_what_a_lock_raises(api: APIClient) -> None:
    """And leaves the rest to REST framework."""
    with held_by_other("order", 7):
        refused = api.post("/inside/7/", {})
    assert (refused.status_code, refused["Retry-After"]) == (409, "1")
    assert api.get("/inside/7/").status_code == 405
    request = HttpRequest()
    assert lock_answer(request, KeyError()) is None
    down = lock_answer(request, EngineUnavailable("down", alias="default", reason="connect"))
    assert down is not None
    assert down.status_code == 503


@pytest.mark.django_db(transaction=True)
def test_under_atomic_requests_the_transaction_is_opened_inside(
    api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the lock is outermost; elsewhere it is refused, with the cure."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    for url in ("mixed/7/", "above/7/", "locked/"):
        found = api.post(f"/{url}", {}).json()
        assert found["atomic"], url
        assert len(found["held"]) == 1
    for url in ("below/7/", "orders/7/capture/"):
        with pytest.raises(ImproperlyConfigured, match="above api_view"):
            api.post(f"/{url}", {})
