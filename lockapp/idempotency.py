"""What ``@idempotent_view`` keeps: who asked for what under which key, and what was answered.

Invariant: a record is written in the transaction of what the view did, and only together with its
answer. So it is there if and only if that was committed; two transactions can't both write it,
since its digest is unique: the second one waits for the first.

Not here: who may enter, and how transactions are opened (``lockapp.decorators``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from hashlib import blake2b
from typing import NamedTuple

from django.core.exceptions import BadRequest
from django.db import DatabaseError, IntegrityError, connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from lockapp.fencing.claims import Clash, dialect_of
from lockapp.models import IdempotencyRecord

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
"""Set to ``true`` on a response that was stored before."""
STORED_HEADERS = ("Content-Type", "Content-Language", "Content-Location", "Location", "Link")
"""What is stored of the headers. Never a cookie: it belongs to one client at one time."""
LONGEST_KEY = 255
ROW_WAIT_S = 10.0  # for who is at work without the lock; MySQL and MariaDB count in whole seconds

# A String of RFC 9651, as the draft has it, or the bare text that most clients send.
_quoted = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_bare = re.compile(r'[\x21\x23-\x7e][\x21-\x7e]*')  # fmt: skip

Scope = Callable[[HttpRequest], object]
Fingerprint = Callable[[HttpRequest], str | bytes]


class BadKey(Exception):
    """The header is missing, or no key."""


class Taken(Exception):
    """Somebody else has written the record meanwhile, or the claim has to be made again."""


class Busy(Exception):
    """Somebody else is about to write the record, and has been for ROW_WAIT_S."""


class Idempotency(NamedTuple):
    """A request's idempotency: ``request.lockapp_idempotency`` inside the view."""

    key: str
    """What the client sent."""
    digest: str
    """Of scope, path and key: what the record is found by."""
    fingerprint: str
    """Of the payload."""

    def derive(self, *parts: str) -> str:
        """Return an idempotency key for a service that the view calls: 40 hexadecimal characters.

        The same for each attempt of the client, another one for other ``parts``: name what is done
        there, ``derive("charge")``. It does not depend on the payload, so that a client that
        changes it after a failure is refused there, instead of being charged twice.
        """
        return _digest("derived", self.digest, *parts)


def parse_key(text: str | None) -> str:
    """Return the key that the header's text carries.

    Raises:
        BadKey: there is none, or it is too long or not spelled as one.
    """
    given = (text or "").strip(" \t")
    if quoted := _quoted.fullmatch(given):
        key = re.sub(r'\\(["\\])', r"\1", quoted[1])
    else:
        key = given if _bare.fullmatch(given) else ""
    if not key or len(key) > LONGEST_KEY:
        raise BadKey("missing" if not given else "malformed")
    return key


def identify(request: HttpRequest, scope: Scope, fingerprint: Fingerprint) -> Idempotency:
    """Return what a request asks for at most once.

    Raises:
        BadKey: see parse_key().
        BadRequest: nobody knows whose key it is.
    """
    key = parse_key(request.headers.get(HEADER))
    whose = scope(request)
    if whose is None or whose == "":
        raise BadRequest(
            "@idempotent_view: an anonymous request without a session: whose key is it? Put "
            "@login_required above, or say whose by scope=lambda request: …"
        )
    what = _digest(request.method or "", request.path, fingerprint(request))
    return Idempotency(key, _digest(f"{whose}", request.path, key), what)


def user_or_session(request: HttpRequest) -> str | None:
    """Return whose key it is: the user's, else the session's, else None."""
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return f"user {user.pk}"
    session = getattr(getattr(request, "session", None), "session_key", None)
    return f"session {session}" if session else None


def payload(request: HttpRequest) -> str:
    """Return the fingerprint of query, type and body.

    Of ``multipart/form-data`` the fields and files, since a client chooses a new boundary for each
    attempt, and somebody may have read the body already.
    """
    kind = request.content_type or ""
    parts: list[str | bytes] = [request.META.get("QUERY_STRING", ""), kind]
    if kind != "multipart/form-data":
        return _digest(*parts, request.body)
    for name, values in sorted(request.POST.lists()):
        parts += ["field", name, *values]
    for name, files in sorted(request.FILES.lists()):
        for file in files:
            parts += ["file", name, file.name or "", *file.chunks()]
            file.seek(0)
    return _digest(*parts)


def record_of(mark: Idempotency, request: HttpRequest, keep: timedelta) -> IdempotencyRecord:
    """Return the record to be written for a request."""
    now = timezone.now()
    return IdempotencyRecord(
        digest=mark.digest,
        key=mark.key,
        fingerprint=mark.fingerprint,
        method=request.method or "",
        path=request.path[:500],
        created_at=now,
        expires_at=now + keep,
    )


def find(digest: str, using: str) -> IdempotencyRecord | None:
    """Return the record of an earlier request; one that has expired is removed."""
    records = IdempotencyRecord.objects.using(using).filter(digest=digest)
    found = records.first()
    if found is None or found.expires_at > timezone.now():
        return found
    records.expired().delete()
    return None


@contextmanager
def claiming(
    record: IdempotencyRecord, using: str, block: AbstractContextManager[None]
) -> Iterator[None]:
    """Open the transaction and write the record as its first statement; yields inside it.

    Whoever is about to write the same one is waited for: up to ROW_WAIT_S.

    Raises:
        Taken, Busy: nothing was read or written.
    """
    connection, claimed = connections[using], False
    dialect = dialect_of(connection)
    try:
        with ExitStack() as limits:
            limits.enter_context(dialect.outside(connection, ROW_WAIT_S))
            with block:
                limits.enter_context(dialect.inside(connection, ROW_WAIT_S))
                try:
                    record.save(using=using, force_insert=True)
                except IntegrityError:
                    raise Taken from None
                limits.close()
                claimed = True
                yield
    except DatabaseError as error:
        clash = None if claimed else dialect.clash(error)
        if clash is None:
            raise
        raise (Busy if clash is Clash.BUSY else Taken) from error


def is_final(response: HttpResponseBase) -> bool:
    """Whether an answer is to be given again, instead of another attempt being made."""
    return response.status_code < 500 and not response.has_header("Retry-After")


def store(record: IdempotencyRecord, response: HttpResponse, max_body: int, using: str) -> None:
    """Put the answer into the record.

    Raises:
        ValueError: it is longer than ``max_body`` bytes.
    """
    if len(response.content) > max_body:
        raise ValueError(
            f"@idempotent_view: the response to {record.path} has {len(response.content)} bytes, "
            f"and max_body={max_body} are stored at most. Answer with less, such as the address of "
            "the result, or raise max_body. What the view wrote is rolled back"
        )
    record.status = response.status_code
    record.headers = {name: response[name] for name in STORED_HEADERS if name in response}
    record.body = response.content
    record.save(using=using, update_fields=["status", "headers", "body"])


def replay(record: IdempotencyRecord) -> HttpResponse:
    """Return the stored answer, marked as such."""
    response = HttpResponse(bytes(record.body), status=record.status, headers=record.headers)
    response[REPLAYED] = "true"
    return response


def _digest(*parts: str | bytes) -> str:
    digest = blake2b(digest_size=20)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(raw))
        digest.update(raw)
    return digest.hexdigest()
