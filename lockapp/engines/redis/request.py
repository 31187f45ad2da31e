"""Requests put together from words that were packed before.

To pack the two dozen words of a step takes longer than all else that Python does for it, and most
of them are the same each time: the script, the keys of the name, the policy. So those are packed
once and kept.
"""

from __future__ import annotations

from typing import Any

from hiredis import pack_command


def packed(words: tuple[Any, ...]) -> bytes:
    """Return the words as they are sent, without the line that counts them."""
    counted: bytes = pack_command(words)
    return counted[counted.index(b"\n") + 1 :]


class Words:
    """Some of the words of a request, as they are sent."""

    __slots__ = ("packed", "words")

    def __init__(self, *words: str) -> None:
        """Pack them."""
        self.words = words
        self.packed = packed(words)

    def __add__(self, other: Words) -> Words:
        """Return these and those, without packing any of them again."""
        both = object.__new__(Words)
        both.words = self.words + other.words
        both.packed = self.packed + other.packed
        return both


NONE = Words()


UNGRANTED = frozenset((b"BUSY", b"QUEUED", b"REFUSED"))


def grants(reply: Any) -> bool:
    """Whether what a step answered gives or prolongs something."""
    return isinstance(reply, list) and reply[0] not in UNGRANTED


def command(*words: Any) -> bytes:
    """Pack a command.

    Numbers become text here: hiredis (3.5) makes the process crash when the exception of a signal
    handler, such as a soft time limit, strikes while it does that.
    """
    texts: Any = tuple(it if isinstance(it, str | bytes) else str(it) for it in words)
    return bytes(pack_command(texts))


ASKING = command("ASKING")
"""Goes before what a Cluster redirects for this once."""


def request(command: Words, first: Words, rest: tuple[str, ...]) -> bytes:
    """Return what asks for ``command`` with its ``first`` arguments and the ``rest``."""
    count = len(command.words) + len(first.words) + len(rest)
    return b"*%d\r\n%b%b%b" % (count, command.packed, first.packed, packed(rest))
