"""Turns the URLs of the environment into what Django and Celery expect.

Kept apart from ``settings.py`` so that settings stay a list of values. Knows no settings itself.
"""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

# One writer at a time is a fact of SQLite; these options make the others wait for it instead of
# failing. IMMEDIATE takes the writer's place at BEGIN, where waiting is possible: a transaction
# that has read first and then wants to write is refused at once ("database is locked"), however
# long the timeout. WAL lets readers go on while somebody writes.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,  # seconds
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def database_from_url(url: str) -> dict[str, Any]:
    """Return the DATABASES entry for ``sqlite:///path`` or ``postgres://user:password@host:port/name``.

    Raises:
        ValueError: The scheme is another one.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = Path(unquote(parts.path.removeprefix("/")))
        path.parent.mkdir(parents=True, exist_ok=True)
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": dict(SQLITE_OPTIONS),
        }
    if parts.scheme in ("postgres", "postgresql"):
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": parts.port or "",
        }
    raise ValueError(
        f"DATABASE_URL starts with {parts.scheme!r}; the demo knows sqlite and postgres."
    )


def celery_redis_url(url: str) -> str:
    """Return the same server's next database: locks in 0, then Celery in 1."""
    parts = urlsplit(url)
    number = parts.path.strip("/")
    return urlunsplit(parts._replace(path=f"/{int(number or 0) + 1}"))


def without_password(url: str) -> str:
    """Return a URL that may be shown."""
    parts = urlsplit(url)
    account, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{account.partition(':')[0]}{at}{host}"))
