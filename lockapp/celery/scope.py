"""Scope: of which copies there is one at a time, from publish to end. A closed vocabulary. Pure.

======================  =======================  ========================================
scope                   copies in the queue      copies that run
======================  =======================  ========================================
``running``             any number               one (or ``limit``)
``queued``              one                      any number
``queued_or_running``   one, if none runs        one
``queued_and_running``  one                      one (or ``limit``)
======================  =======================  ========================================

The left column is kept where messages are sent, by :class:`~lockapp.celery.publish.LockTask`, and
is an optimisation: a message that goes round it is run all the same. The right column is the
promise, kept by whoever runs the body.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lockapp.ways import Unset

if TYPE_CHECKING:
    from lockapp.celery.options import Options

ScopeName = Literal["running", "queued", "queued_or_running", "queued_and_running"]


@dataclass(frozen=True, slots=True)
class Scope:
    """One row of the table."""

    word: ScopeName
    queued: bool
    """Whether one copy waits at most: others are not sent."""
    running: bool
    """Whether a body runs under a lock."""
    either: bool = False
    """Whether none is sent while one runs, either."""

    def refuse_unfit(self, options: Options, queued_ttl_given: bool) -> None:
        """Refuse options that can't do what they say within this scope.

        Raises:
            TypeError, ValueError: naming the option that is too much.
        """
        here, policy = f"scope={self.word!r}", options.policy.word
        if not self.queued:
            if queued_ttl_given:
                raise TypeError(
                    f"queued_ttl= has no meaning with {here}, which looks at no queue; it is for "
                    "the scopes 'queued', 'queued_or_running' and 'queued_and_running'"
                )
            return
        if policy == "rerun":
            raise ValueError(
                f"on_contention='rerun' wants every copy sent, for the latest arguments, and "
                f"{here} does not send them; leave out one of them, or use "
                "scope='queued_and_running' with on_contention='wait' or 'retry'"
            )
        if not self.running and (given := _about_running(options)):
            raise TypeError(
                f"{given[0]}= has no meaning with {here}, which puts no limit on copies that run; "
                "use scope='queued_and_running' or 'queued_or_running'"
            )
        if self.either and options.limit > 1:
            raise ValueError(
                f"{here} is one copy from publish to end; with limit={options.limit} use "
                "scope='queued_and_running' or 'running'"
            )
        if self.running and not self.either:
            if policy not in ("wait", "retry"):
                raise ValueError(
                    f"{here} keeps one copy waiting while another one runs, and "
                    f"on_contention={policy!r} would end it as soon as a worker has it; "
                    "use on_contention='wait' or 'retry'"
                )
            if options.remember_s:
                raise ValueError(
                    f"remember= would end the copy that {here} keeps waiting with the result of "
                    "the one before it; leave out one of them"
                )


def _about_running(options: Options) -> list[str]:
    """Return the names of the options given that speak of a lock while the body runs."""
    given: dict[str, bool] = {
        "on_contention": options.policy.word != "skip",
        "limit": options.limit != 1,
        "remember": bool(options.remember_s),
        "ttl": not isinstance(options.ttl, Unset),
        "max_hold": not isinstance(options.max_hold, Unset),
        "on_lost": options.on_lost is not None,
        "on_revoke": options.on_revoke is not None,
        "on_unavailable": not isinstance(options.on_unavailable, Unset),
    }
    return [name for name, is_given in given.items() if is_given]


SCOPES: dict[str, Scope] = {
    scope.word: scope
    for scope in (
        Scope("running", queued=False, running=True),
        Scope("queued", queued=True, running=False),
        Scope("queued_or_running", queued=True, running=True, either=True),
        Scope("queued_and_running", queued=True, running=True),
    )
}
assert list(SCOPES) == list(get_args(ScopeName))


def make_scope(word: str) -> Scope:
    """Return the scope of that name.

    Raises:
        TypeError, ValueError: there is none; the message names those there are.
    """
    known = f"scope must be one of {sorted(SCOPES)}, not {word!r}"
    if not isinstance(word, str):
        raise TypeError(known)
    if word not in SCOPES:
        near = difflib.get_close_matches(word, SCOPES, n=1)
        raise ValueError(known + (f"; did you mean {near[0]!r}?" if near else ""))
    return SCOPES[word]
