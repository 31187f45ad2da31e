"""Who this process is, for people (host, pid) and for the server (an id new in every process)."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from functools import lru_cache

Details = tuple[tuple[str, str], ...]
"""What the edges know of the work at hand: pairs of a key and a text."""

# Made once; json.dumps() with these options would make one each time.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_HOST = ""
_PROCESS = ""


def process_id() -> str:
    """Return an id of this process that no other process shares, also after a fork."""
    global _HOST, _PROCESS
    if not _PROCESS:
        _HOST = socket.gethostname()
        _PROCESS = f"{os.getpid()}.{secrets.token_hex(6)}"
    return _PROCESS


def forget_process() -> None:
    """Forget the id: the parent's is not ours. Called in a forked child."""
    global _PROCESS
    _PROCESS = ""


os.register_at_fork(after_in_child=forget_process)


def describe_holder(details: Details, why: str) -> str:
    """Return the JSON that tells people who holds a lock and why."""
    return _describe(process_id(), threading.current_thread().name, details, why)


@lru_cache(maxsize=256)  # on the way of every acquire, and the same again and again
def _describe(process: str, thread: str, details: Details, why: str) -> str:
    about = {"host": _HOST, "pid": process.partition(".")[0], "process": process, "thread": thread}
    about.update(details)
    if why:
        about["why"] = why
    return note_of(**about)


def note_of(**fields: str) -> str:
    """Return the JSON that goes with a holder or an operator's action: one line.

    Half a surrogate pair, which is no text and could not be sent, becomes a question mark.
    """
    return _encode(fields).encode("utf-8", "replace").decode()
