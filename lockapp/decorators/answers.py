"""What a locked view answers when it may not run: 409 or 503, each with Retry-After.

Both say that nothing was done, so that a client can try again without fear of doing it twice. A key
that can't be used (400, 422) is the client's mistake, and trying again won't help.
"""

from __future__ import annotations

import math
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from lockapp.exceptions import EngineUnavailable, NotAcquired

CONTENDED = "urn:lockapp:contended"
UNAVAILABLE = "urn:lockapp:unavailable"
BAD_KEY = "urn:lockapp:idempotency-key"
PAYLOAD_DIFFERS = "urn:lockapp:idempotency-payload"
"""The ``type`` of the problem documents: a 409 of the view's own must be told from ours."""
JSON_TYPES = ("application/problem+json", "application/json")
RETRY_LIMIT_S = 30  # the longest Retry-After of a contended view
DOWN_RETRY_S = 5  # Retry-After when the engine is unavailable


def lock_answer(request: HttpRequest, error: BaseException) -> HttpResponse | None:
    """Return what a locked view would answer to this exception of a lock; None to any other.

    For the exception handler of a REST framework, and for middleware, where views take locks
    themselves: 409 for NotAcquired and what derives from it, 503 for EngineUnavailable. Both say
    that nothing was done: roll back what the view has written before.
    """
    if isinstance(error, NotAcquired):
        return contended(request, error)
    return unavailable(request) if isinstance(error, EngineUnavailable) else None


def contended(request: HttpRequest, error: NotAcquired | None) -> HttpResponse:
    """409: somebody else holds it. Never says who: that is for operators."""
    # Who has held it for long will hold it for long; the lease itself may be renewed for ever.
    held_s = error.holder.held_ms / 1000 if error and error.holder else 0
    return _problem(
        request,
        HTTPStatus.CONFLICT,
        CONTENDED,
        _("In progress"),
        _("Another request is doing this just now. Nothing was done; try again in a moment."),
        min(max(math.ceil(held_s), 1), RETRY_LIMIT_S),
    )


def unavailable(request: HttpRequest) -> HttpResponse:
    """503: whether somebody holds it could not be asked."""
    return _problem(
        request,
        HTTPStatus.SERVICE_UNAVAILABLE,
        UNAVAILABLE,
        _("Temporarily unavailable"),
        _("This can't be done safely just now. Nothing was done; try again later."),
        DOWN_RETRY_S,
    )


def bad_key(request: HttpRequest) -> HttpResponse:
    """400: the header Idempotency-Key is missing, or no key."""
    return _problem(
        request,
        HTTPStatus.BAD_REQUEST,
        BAD_KEY,
        _("Idempotency-Key is missing or malformed"),
        _("Send a key of up to 255 visible characters, a new one for each new operation."),
    )


def payload_differs(request: HttpRequest) -> HttpResponse:
    """422: the key belongs to another payload."""
    return _problem(
        request,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        PAYLOAD_DIFFERS,
        _("Idempotency-Key is already used"),
        _("This key was sent before with another request. Nothing was done."),
    )


def _problem(
    request: HttpRequest,
    status: HTTPStatus,
    kind: str,
    title: str,
    detail: str,
    retry_s: int | None = None,
) -> HttpResponse:
    """Return a problem document (RFC 9457), or plain text for who prefers text to JSON."""
    response: HttpResponse
    if request.get_preferred_type([*JSON_TYPES, "text/plain", "text/html"]) in JSON_TYPES:
        body = {"type": kind, "title": title, "status": int(status), "detail": detail}
        response = JsonResponse(body, status=status, content_type=JSON_TYPES[0])
    else:
        text = f"{title}. {detail}\n"
        response = HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    if retry_s is not None:
        response["Retry-After"] = str(retry_s)
    response["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["Accept"])
    return response
