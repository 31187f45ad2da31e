"""The Lua steps, their headers, and the Python that calls them say the same.

Every check is a function of the sources that returns what is wrong, so that the tests can also
give it a source with a fault and see that it is noticed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from lockapp.core.options import EngineOptions
from lockapp.core.values import Degraded, LockSpec, RenewItem
from lockapp.engines.redis.health import OLDEST
from lockapp.engines.redis.redlock.node import NodeSteps
from lockapp.engines.redis.request import NONE, Words
from lockapp.engines.redis.scripts import STEPS, Script, build, build_all
from lockapp.engines.redis.steps import RedisSteps
from tools import lua_page
from tools.lua_page import FIELDS, SHARED, body, includes, parse, sources

Sources = dict[str, str]

MOST_LINES = 60
LONGER = {
    "acquire.lua": 74,  # the short way of a free mutex and the general way, read together
    "_shared/handoff.lua": 66,  # who is next, and whether it fits: one decision, read together
    "_shared/lock.lua": 150,  # what a lock's hash is and all that is done to it, in one place
}
"""Bodies that are longer than they should be, with what they have: they may shrink, not grow."""

POLICY = "1 safety_ms, 2 claim_ms, 3 event_cap, 4 tombstone_ms"
"""Sent to every step that changes locks, whether its fragments use all four or not."""
GIVES_BACK = set(STEPS) - {"acquire", "acquire_all", "inspect"}
INDEX = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
CALL = re.compile(r"redis\.p?call\('(\w+)'(?:, *([^,)]+(?:\[[^\]]*\])?[^,)]*))?")
KEY_NAMES = ("key", "queue", "waiters", "inbox", "lock.key", "lock.queue", "lock.waiters")
KEY = re.compile(
    rf"^(?:KEYS\[(?:\d+|i|i \+ [12]|at|at \+ [12])\]|{'|'.join(map(re.escape, KEY_NAMES))})$"
)
CHANNEL = re.compile(r"^ARGV\[\d+\] \.\. holder\.process$")
"""What PUBLISH takes is no key: a server of a cluster passes it on to the others."""
INBOX = re.compile(r"^KEYS\[6\] \.\. (?:token|holder\.token)$")
NEEDS = re.compile(r"\bNeeds ([\w, ]+)\.")


def step_files(given: Sources) -> dict[str, str]:
    """The sources of steps, without the fragments."""
    return {path: text for path, text in given.items() if not path.startswith("_shared/")}


def code(lines: list[str]) -> list[str]:
    """Lines without comments."""
    return [re.sub(r"\s*--.*$", "", line) for line in lines]


# ------------------------------------------------------------------ the checks


def wrong_fields(given: Sources) -> list[str]:
    """A field is missing, empty or out of its order; a number is skipped; a flag is not right."""
    wrong = []
    for path, text in step_files(given).items():
        name = path.removesuffix(".lua")
        try:
            header = parse(text)
        except ValueError as error:
            wrong.append(f"{path}: {error}")
            continue
        if tuple(header.fields) != FIELDS:
            wrong.append(f"{path}: fields {tuple(header.fields)} instead of {FIELDS}")
            continue
        wrong += [f"{path}: {f} is empty" for f, lines in header.fields.items() if not lines[0]]
        for field in ("Keys", "Args"):
            count, numbers = header.count(field), header.numbers(field)
            last = count.fixed + (1 if count.each else 0)
            borrowed = "as in acquire.lua" in header.fields[field][0]
            if not borrowed and numbers != list(range(1, last + 1)):
                wrong.append(f"{path}: {field} declares {count} and explains {numbers}")
            if borrowed and header.count(field) != parse(given["acquire.lua"]).count(field):
                wrong.append(f"{path}: {field} is not as in acquire.lua")
        if header.fields["Since"][0] != f"Redis {OLDEST[0]}.{OLDEST[1]}.":
            wrong.append(f"{path}: Since differs from the oldest server that is let in")
        flags = "flags=allow-oom" if name in GIVES_BACK else ""
        if header.flags != ("flags=no-writes" if name == "inspect" else flags):
            wrong.append(f"{path}: flags {header.flags!r}")
    return wrong


def wrong_indices(given: Sources) -> list[str]:
    """The highest KEYS and ARGV of the assembled body is not the number declared."""
    wrong = []
    for path, text in step_files(given).items():
        name, header = path.removesuffix(".lua"), parse(text)
        assembled = code(build(name, given).text.splitlines())
        used: dict[str, list[int]] = {"KEYS": [0], "ARGV": [0]}
        for line in assembled:
            for which, number in INDEX.findall(line):
                used[which].append(int(number))
        for which, field in (("KEYS", "Keys"), ("ARGV", "Args")):
            count, highest = header.count(field), max(used[which])
            if which == "ARGV" and POLICY in " ".join(header.fields["Args"]):
                highest = max(highest, 4)
            if highest != count.fixed:
                wrong.append(f"{path}: {which}[{highest}] is used, {count.fixed} declared")
            computed = any(re.search(rf"{which}\[[^\d\]]|#{which}", line) for line in assembled)
            if computed != bool(count.each):
                wrong.append(f"{path}: {which} is indexed by a variable, or is not")
    return wrong


def wrong_keys(given: Sources) -> list[str]:
    """A command gets a key that does not come from KEYS, or one put together from pieces."""
    wrong = []
    for path, text in given.items():
        for line in code(body(text)):
            for command, first in CALL.findall(line):
                key = first.strip()
                if command == "TIME" or (command == "PUBLISH" and CHANNEL.match(key)):
                    continue
                if not KEY.match(key) and not INBOX.match(key):
                    wrong.append(f"{path}: {command} {key}")
            pieces = re.findall(r"(?:KEYS\[\d+\]|\b(?:lock\.)?key) \.\. [\w.]+", line)
            wrong += [f"{path}: {piece}" for piece in pieces if not INBOX.match(piece)]
            if "local inbox" in line and not INBOX.match(line.partition("= ")[2]):
                wrong.append(f"{path}: {line.strip()}")
            if re.search(r"\blocal (key|queue) =", line):
                wrong.append(f"{path}: {line.strip()}")
    return wrong


def wrong_includes(given: Sources) -> list[str]:
    """A fragment from elsewhere, one twice, one that stands before what it needs."""
    wrong = []
    for path, text in given.items():
        found = includes(text)
        if path.startswith("_shared/"):
            wrong += [f"{path}: includes {inner}" for inner in found]
            continue
        seen: list[str] = []
        for inner in found:
            name = inner.removeprefix("_shared/").removesuffix(".lua")
            if inner != f"_shared/{name}.lua" or name not in SHARED:
                wrong.append(f"{path}: includes {inner}")
                continue
            if name in seen:
                wrong.append(f"{path}: includes {inner} twice")
            needs = NEEDS.search(" ".join(given[inner].split("\nlocal ")[0].split()))
            missing = set(needs[1].split(", ")) - set(seen) if needs else set()
            if missing:
                wrong.append(f"{path}: {inner} comes before {sorted(missing)}")
            seen.append(name)
        if seen[:1] != ["clock"]:
            wrong.append(f"{path}: reads no server time")
    return wrong


def wrong_lengths(given: Sources) -> list[str]:
    """A body has grown beyond what can be read at once."""
    return [
        f"{path}: {lines} lines"
        for path, text in given.items()
        if (lines := len(body(text))) > LONGER.get(path, MOST_LINES)
    ]


CHECKS = (wrong_fields, wrong_indices, wrong_keys, wrong_includes, wrong_lengths)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nothing_is_wrong(check: Callable[[Sources], list[str]]) -> None:
    """With the files as they are."""
    assert check(sources()) == []


FAULTS: list[tuple[Callable[[Sources], list[str]], str, str, str]] = [
    (wrong_fields, "acquire.lua", "-- Cost: O(", "-- O("),
    (wrong_fields, "release.lua", "-- Time: server TIME.\n", ""),
    (wrong_fields, "cancel.lua", "-- Since: Redis 7.0.", "-- Since: Redis 2.6."),
    (wrong_fields, "renew.lua", "#!lua flags=allow-oom", "#!lua"),
    (wrong_fields, "acquire.lua", "#!lua\n", "#!lua flags=allow-oom\n"),
    (wrong_fields, "acquire.lua", "--   8 weight ", "--   9 weight "),
    (wrong_fields, "abandon.lua", "-- Keys: 9,", "-- Keys: 8,"),
    (wrong_fields, "sweep.lua", "-- Returns:", "-- Invariant: none.\n-- Returns:"),
    (wrong_indices, "release.lua", "-- Args: 8", "-- Args: 9"),
    (wrong_indices, "release.lua", "KEYS[9], flat)", "KEYS[10], flat)"),
    (wrong_indices, "force_release.lua", "ARGV[6]", "ARGV[9]"),
    (wrong_indices, "renew.lua", "-- Keys: 1 + one lock per lease", "-- Keys: 1"),
    (wrong_indices, "_shared/grant.lua", "KEYS[2]", "KEYS[12]"),
    (wrong_keys, "release.lua", "redis.call('DEL', KEYS[7])", "redis.call('DEL', 'lock')"),
    (wrong_keys, "_shared/lock.lua", "KEYS[6] .. holder.token", "KEYS[7] .. holder.token"),
    (wrong_keys, "_shared/waiters.lua", "'ZREM', lock.queue", "'ZREM', lock.key .. suffix"),
    (wrong_keys, "revoke.lua", "'PUBLISH', ARGV[8] ..", "'PUBLISH', 'notice:' .."),
    (wrong_keys, "revoke.lua", "'PUBLISH', ARGV[8] ..", "'DEL', ARGV[8] .."),
    (wrong_keys, "_shared/handoff.lua", "KEYS[6] .. token", "'lockapp:grant:' .. token"),
    (wrong_includes, "cancel.lua", "_shared/number.lua", "elsewhere/number.lua"),
    (wrong_includes, "cancel.lua", "_shared/number.lua", "_shared/clock.lua"),
    (wrong_includes, "sweep.lua", "-- include: _shared/grant.lua\n", ""),
    (wrong_lengths, "cancel.lua", "hand_off(lock)\n", "hand_off(lock)\n" * 60),
]


@pytest.mark.parametrize(("check", "path", "old", "new"), FAULTS)
def test_a_fault_is_noticed(
    check: Callable[[Sources], list[str]], path: str, old: str, new: str
) -> None:
    """A check that never fails checks nothing."""
    given = sources()
    assert old in given[path], "the fault must be put in somewhere"
    given[path] = given[path].replace(old, new)
    assert check(given)


# ------------------------------------------------------------------ what Python sends

HOLDERLESS = [b"BUSY", 1, []]
REPLIES: dict[str, Any] = {
    "acquire_all": [b"BUSY", 1, []],
    "downgrade": [b"GONE", 1, b"", b""],
    "acquire": HOLDERLESS,
    "accept": [b"GONE", 1, b"", b""],
    "release": [b"RELEASED", 1],
    "cancel": [b"GONE", 1, b"", b""],
    "force_release": [b"NOT_HELD", 1],
    "revoke": [b"NOT_HELD", 1],
    "abandon": [b"NOT_HELD", 1],
    "sweep": [1, 0],
    "land": 1,
    "report": 1,
}


class Recorder:
    """A transport that sends nothing and remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, tuple[Any, ...]]] = []

    def at(self, base: str) -> Recorder:
        return self

    async def script(
        self, script: Script, arguments: tuple[str, ...], first: Words = NONE, acks: int = 0
    ) -> Any:
        arguments = (*first.words, *arguments)
        self.sent.append((script.name, arguments))
        if script.name == "renew":
            return [1, [[1, b"", b""]] * (int(arguments[0]) - 1), []]
        if script.name == "inspect":
            return [1, *[[1, 0, [], []]] * (int(arguments[0]) // 3)]
        return REPLIES[script.name]

    async def command(self, *arguments: Any, block_s: float = 0.0) -> Any:
        return [b"1", b"1"]  # the format and the number of shards

    async def sleep(self, seconds: float) -> None: ...

    async def rest(self) -> bool:
        return True

    def forget(self) -> object:
        return None

    def now(self) -> float:
        return 0.0


async def _call_every_step(steps: RedisSteps) -> dict[str, list[int]]:
    """Call each step, the variadic ones with several numbers of items; return those numbers."""
    spec = LockSpec("order:42", 30_000, 0)
    await steps.acquire(spec, "token", "{}", queue=True)
    await steps.acquire(spec, "token", "{}", queue=False)
    await NodeSteps.accept(steps, "order:42", "token", 1)  # type: ignore[arg-type]
    await steps.release("order:42", "token", tombstone=True, why="")
    await steps.cancel("order:42", "token", tombstone=False)
    await steps.force_release("order:42", 1, "alice", "stuck")
    await steps.revoke("order:42", 1, "alice", "deploy")
    await steps.abandon("order:42", "token", 0, "parent", "killed")
    await steps.land("order:42", "token", 1, "kept", 10_000)
    leases = [RenewItem(f"order:{n}", "token", 30_000) for n in range(3)]
    await steps.downgrade("order:42", "token", 1, 30_000)
    for number in (0, 1, 3):
        await steps.renew(leases[:number])
    for number in (1, 3):
        specs = [LockSpec(f"order:{n}", 30_000, 0) for n in range(number)]
        await steps.acquire_all(specs, ["token"] * number, "{}")
    for number in (1, 3):
        await steps.sweep([lease.name for lease in leases[:number]])
        await steps.inspect([lease.name for lease in leases[:number]], waiters=True)
        await steps.report([Degraded("order:42", "open", 1, "connect", "{}")] * number)
    return {
        "renew": [0, 1, 3],
        "sweep": [1, 3],
        "inspect": [1, 3],
        "acquire": [0, 0],
        "acquire_all": [1, 3],
        "report": [1, 3],
    }


def sent_wrongly(scripts: dict[str, Script], given: Sources) -> list[str]:
    """Python sends another number of keys or arguments than the header declares."""
    recorder = Recorder()
    steps = RedisSteps(recorder, EngineOptions(), scripts, "default")
    items = asyncio.run(_call_every_step(steps))
    calls = {name: iter(numbers) for name, numbers in items.items()}
    wrong = [] if {name for name, _ in recorder.sent} == set(STEPS) else ["not every step is sent"]
    for name, arguments in recorder.sent:
        header, number = parse(given[f"{name}.lua"]), next(calls.get(name, iter([0])))
        keys = int(arguments[0])
        arguments_sent = len(arguments) - 1 - keys
        if (keys, arguments_sent) != (
            header.count("Keys").of(number),
            header.count("Args").of(number),
        ):
            wrong.append(f"{name}: {keys} keys and {arguments_sent} arguments are sent")
        spelled = arguments[1 : keys + 1]
        if not all(isinstance(key, str) and key.startswith("lockapp:{0}:") for key in spelled):
            wrong.append(f"{name}: {spelled} are not all keys of the shard")
        if not all(isinstance(value, str) for value in arguments):
            wrong.append(f"{name}: something is sent that is not text: {arguments}")
    return wrong


def test_python_sends_what_the_headers_declare() -> None:
    """Each step, with every key of the shard's hash tag and every argument as text."""
    assert sent_wrongly(build_all(), sources()) == []


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("acquire.lua", "-- Args: 13", "-- Args: 14"),
        ("cancel.lua", "-- Keys: 9", "-- Keys: 8"),
        ("renew.lua", "three per lease", "two per lease"),
        ("sweep.lua", "three per name", "two per name"),
        ("inspect.lua", "-- Args: 1", "-- Args: 2"),
        ("acquire_all.lua", "six per lock", "three per lock"),
        ("downgrade.lua", "-- Args: 8", "-- Args: 7"),
    ],
)
def test_a_step_that_is_called_with_another_number_is_noticed(
    path: str, old: str, new: str
) -> None:
    """The header says one number and Python sends another."""
    given = sources()
    assert old in given[path]
    given[path] = given[path].replace(old, new)
    assert sent_wrongly(build_all(), given)


# ------------------------------------------------------------------ the page


def test_the_page_is_written_from_the_headers() -> None:
    """`python -m tools.lua_page --write` renews it."""
    assert lua_page.PAGE.read_text("utf-8") == lua_page.page()
