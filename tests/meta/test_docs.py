"""README.md and docs/ agree with the code and with each other: names, arguments, links.

Their examples are run elsewhere (tests/docs); settings, checks and Lua steps have tests of their
own beside what they describe.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lockapp
import lockapp.celery
from lockapp import decorators, exceptions, handler, pytest_plugin, signals, testing
from lockapp.celery.policies import POLICIES
from lockapp.core import values
from lockapp.engines.base import Engine
from lockapp.handler import EngineHandler, LockOptions
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.mixins import LockedViewMixin
from lockapp.primitives import MultiLease, RWLock
from lockapp.querysets import LockEventQuerySet, LockHoldQuerySet
from lockapp.single_flight import FlightOptions, _plan, asingle_flight, single_flight

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
API = ROOT / "docs" / "reference" / "api.md"
VIEWS = ROOT / "docs" / "howto" / "views.md"
PAYMENTS = ROOT / "docs" / "howto" / "payments.md"
TASKS = ROOT / "docs" / "howto" / "celery-tasks.md"
CHOOSING = ROOT / "docs" / "howto" / "choose-an-engine.md"
TESTS = ROOT / "docs" / "howto" / "test-code-that-locks.md"

PENDING = {"docs/explanation/guarantees.md", "docs/glossary.md"}
"""What may be linked before it is there."""
MOST_LINES = 150  # of the README: what does not fit belongs into docs/

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return FENCED.sub("", page.read_text("utf-8"))


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links to, with the anchor."""
    for target in LINK.findall(prose(page)):
        if "://" not in target:
            path, _, fragment = target.partition("#")
            yield ((page.parent / path).resolve() if path else page), fragment


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next of its level or above."""
    text = prose(page)
    found = re.search(rf"^(#+) +{re.escape(heading)}\s*$", text, re.MULTILINE)
    assert found, f"{page.name} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[str]:
    """The first cell of each row of the tables in a text, without their heads."""
    cells: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        if set(line) <= set("|-: "):
            cells.pop()  # the line above was a head
        else:
            cells.append(line.split("|")[1])
    return cells


def first_words(text: str) -> set[str]:
    """The names in the first cells: of `acquire(wait=…)` and `*parts` the bare name."""
    return {
        word[0]
        for cell in rows(text)
        for code in CODE.findall(cell)
        if (word := re.search(r"\w+", code))
    }


def own_names(cls: type) -> set[str]:
    """What a class shows: methods, properties, and what its instances are given."""
    ours = [part for part in cls.__mro__ if part.__module__.startswith("lockapp")]
    source = "".join(inspect.getsource(part) for part in ours)
    given = set(re.findall(r"^\s+self\.([a-z]\w*)(?:: [^=]+)? = ", source, re.MULTILINE))
    return {name for name in {*dir(cls), *given} if not name.startswith("_")}


# ------------------------------------------------------------------ links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading or a test that it has."""
    broken = []
    for target, fragment in links(page):
        path = target.relative_to(ROOT).as_posix()
        if not target.exists():
            broken += [] if path in PENDING else [path]
        elif target.suffix == ".py":
            # Of a test, by its name: nothing jumps there, but it is what one searches for.
            if fragment and f"def {fragment}(" not in target.read_text("utf-8"):
                broken.append(f"{path}#{fragment}")
        elif fragment:
            anchors = {anchor(heading) for heading in HEADING.findall(prose(target))}
            if fragment not in anchors:
                broken.append(f"{path}#{fragment}")
    assert broken == []


def test_what_an_engine_promises_is_shown_by_a_test() -> None:
    """Each cell of the tables, and a row for each engine in each."""
    text = section(CHOOSING, "What each promises")
    heads = {"engine", "memory", "one Redis"}
    found = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if "|" in line
    ]
    lines = [cells for cells in found if set(cells[0]) - set("-")]
    engines = [cells[0] for cells in lines]
    assert heads <= set(engines)
    assert all(engines.count(engine) == 2 for engine in engines)
    unshown = [
        cell
        for engine, *cells in lines
        if engine != "engine"
        for cell in cells
        if not re.search(r"\]\(\.\./\.\./tests/\S+\.py#test_\w+\)", cell)
    ]
    assert unshown == []


def test_every_page_is_found_from_the_index() -> None:
    """A page that nobody links to is read by nobody."""
    index = ROOT / "docs" / "index.md"
    listed = {target for target, _ in links(index)}
    assert {page.resolve() for page in PAGES} - listed - {index.resolve()} == set()
    assert index.resolve() in {target for target, _ in links(ROOT / "README.md")}


def test_the_readme_is_short() -> None:
    """What is promised and what is not stands on the first screen."""
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert "## What it is not" in lines[:24]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_one_title_and_no_path_of_somebodys_machine(page: Path) -> None:
    """Headings go down one level at a time."""
    text = page.read_text("utf-8")
    levels = [len(mark) for mark in re.findall(r"^(#+) ", FENCED.sub("", text), re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert not re.search(r"/(?:home|work|Users|root)/", text)


# ------------------------------------------------------------------ names

INTERNAL: dict[type, set[str]] = {
    Lock: {"already", "attempt", "contended", "lease", "raises_loss", "several"},
    RWLock: set(),
    Lease: {
        "key", "renew_item", "undo", "held", "renewed", "lose", "valid_until", "final",
        "give_back", "let_go", "noticed", "mark", "pins", "take_up", "transactions",
    },
    MultiLease: {"give_back", "let_go"},
    EngineHandler: set(),
    Engine: {
        "sync", "aio", "make_sync_port", "make_async_port", "remember", "forget", "held_by",
        "holds", "observe", "observer", "after_fork", "pid", "hold", "local", "transactions",
        "leases", "ports", "address", "examine", "problems",
    },
}  # fmt: skip
"""Public to the other modules of lockapp, and not to applications."""

SECTIONS = {
    "class Lock": Lock,
    "rwlock()": RWLock,
    "class Lease": Lease,
    "class MultiLease": MultiLease,
    "EngineHandler": EngineHandler,
    "class Engine": Engine,
}


def test_every_public_name_of_the_package_is_documented() -> None:
    """And no other."""
    assert first_words(section(API, "`lockapp`")) == set(lockapp.__all__)


@pytest.mark.parametrize("heading", SECTIONS)
def test_what_a_class_shows_is_what_is_documented(heading: str) -> None:
    """Methods, twins and attributes; what is internal is listed here, not there."""
    cls = SECTIONS[heading]
    names = own_names(cls)
    assert INTERNAL[cls] <= names, "something internal is gone"
    documented = {
        re.search(r"\w+", code)[0]  # type: ignore[index]
        for cell in rows(section(API, heading))
        for code in CODE.findall(cell)
    }
    assert documented == names - INTERNAL[cls]


@pytest.mark.parametrize("heading", SECTIONS)
def test_documented_arguments_are_those_of_the_code(heading: str) -> None:
    """`force_release(name, fence, *, actor, reason="")` is the signature, in that order."""
    for cell in rows(section(API, heading)):
        for code in CODE.findall(cell):
            name, bracket, given = code.partition("(")
            if bracket:
                signature = inspect.signature(getattr(SECTIONS[heading], name))
                real = [parameter for parameter in signature.parameters if parameter != "self"]
                assert re.findall(r"(?:^|, )(\w+)", given.rstrip(")")) == real, code


def test_options_of_a_lock_are_documented() -> None:
    """In `lock()`, `Lock` and the page, in one order."""
    table = [CODE.findall(cell)[0] for cell in rows(section(API, "lock()"))]
    parameters = inspect.signature(Lock.__init__).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert named == [*table, "limit", "weight"], "the shape is what semaphore() and others are for"
    assert table == list(LockOptions.__annotations__)


@pytest.mark.parametrize("name", ["lock", "semaphore", "rwlock", "multilock", "assert_locked"])
def test_what_describes_a_lock_is_called_as_documented(name: str) -> None:
    """The line below the heading has the parameters of the code, in their order."""
    said = re.search(rf"^`{name}\((.*?)\)(?: -> \w+)?`$", section(API, f"{name}()"), re.MULTILINE)
    assert said
    parameters = inspect.signature(getattr(handler, name)).parameters
    assert re.findall(r"(?:^|, )\*{0,2}(\w+)", said[1]) == list(parameters)


def test_options_of_a_flight_are_documented() -> None:
    """In the page, in the options and in what reads them, in one order."""
    table = [CODE.findall(cell)[0] for cell in rows(section(API, "single_flight()"))]
    assert table == list(FlightOptions.__annotations__)
    assert table == list(inspect.signature(_plan).parameters)[2:]


def test_both_fronts_of_a_flight_are_called_alike() -> None:
    """`single_flight()` and its twin."""
    blocking = inspect.signature(single_flight.__call__).parameters
    twin = inspect.signature(asingle_flight).parameters
    assert [(p.name, p.kind) for p in blocking.values()] == [
        (p.name, p.kind) for p in twin.values()
    ]


def test_arguments_of_view_lock_are_documented() -> None:
    """All of them, in their order."""
    table = [CODE.findall(cell)[0] for cell in rows(section(VIEWS, "All arguments"))]
    parameters = inspect.signature(decorators.view_lock).parameters.values()
    assert table == [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in parameters]


def test_arguments_of_idempotent_view_are_documented() -> None:
    """All of them, in their order."""
    table = [CODE.findall(cell)[0] for cell in rows(section(PAYMENTS, "All arguments"))]
    assert table == list(inspect.signature(decorators.idempotent_view).parameters)


def test_options_of_a_task_are_documented() -> None:
    """Each has its row, and so has each policy, in their order."""
    parameters = inspect.signature(lockapp.celery.single_instance).parameters.values()
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert first_words(section(TASKS, "Options")) == named
    text = section(TASKS, "When another instance runs already")
    policies = re.findall(r'^\|[^|]*\| `"(\w+)"`', text, re.MULTILINE)
    assert policies == list(POLICIES)


def classes_of(module: ModuleType, root: type) -> set[str]:
    """The classes of a kind that a module defines."""
    return {
        name
        for name, found in vars(module).items()
        if inspect.isclass(found)
        and issubclass(found, root)
        and found.__module__ == module.__name__
    }


def test_the_tree_of_errors_is_documented_as_it_is() -> None:
    """Every class, below its parent, and every field that its docstring promises."""
    text = API.read_text("utf-8")
    tree = re.search(r"^```text\n(LockAppError.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert tree
    parents: list[tuple[int, str]] = []
    seen = set()
    for line in tree[1].splitlines():
        found = re.match(r"^([│├└─ ]*)(\w+)", line)
        assert found
        depth, name = len(found[1]), found[2]
        parents = [(before, parent) for before, parent in parents if before < depth]
        if parents:
            assert parents[-1][1] in {base.__name__ for base in getattr(exceptions, name).__bases__}
        parents.append((depth, name))
        seen.add(name)
    assert seen == classes_of(exceptions, exceptions.LockAppError)
    documented = {
        name: set(CODE.findall(line.split("|")[2]))
        for line in section(API, "Errors").splitlines()
        if line.startswith("| `")
        for name in CODE.findall(line.split("|")[1])
    }
    for name, fields in documented.items():
        doc = inspect.getdoc(getattr(exceptions, name)) or ""
        promised = re.findall(r"``(\w+)``", doc.partition("Fields:")[2].partition("one of")[0])
        assert set(promised) <= fields, name


def test_fields_of_values_are_documented() -> None:
    """Every field of each value that an application gets, in its order."""
    for line in section(API, "Values").splitlines():
        if not line.startswith("| `"):
            continue
        name = CODE.findall(line.split("|")[1])[0]
        fields = [code for code in CODE.findall(line.split("|")[2]) if re.fullmatch(r"\w+", code)]
        cls: Any = getattr(values, name)
        if issubclass(cls, enum.Enum):
            assert fields == list(cls.__members__)
        else:
            assert fields == [field.name for field in dataclasses.fields(cls)]


def test_signals_are_documented() -> None:
    """Each with the argument that it is sent with."""
    documented = {
        CODE.findall(line.split("|")[1])[0]: CODE.findall(line.split("|")[2])[0]
        for line in section(API, "Signals").splitlines()
        if line.startswith("| `")
    }
    real = {
        name: argument
        for name, signal in vars(signals).items()
        for sent, argument in signals._BY_KIND.values()
        if signal is sent
    }
    assert documented == real


def test_what_tests_of_users_call_is_documented() -> None:
    """Each name, with its arguments and their defaults, and each fixture."""
    text = section(API, "Testing")
    assert first_words(text) >= set(testing.__all__) - {"aexpire", "aforce_release", "arevoke"}
    for code in (code for cell in rows(text) for code in CODE.findall(cell)):
        name, bracket, given = code.partition("(")
        home = testing if hasattr(testing, name) else testing.SteppableClock
        parameters = inspect.signature(getattr(home, name)).parameters
        named = [parameter for parameter in parameters if parameter != "self"]
        assert not bracket or re.findall(r"(?:^|, )\*{0,2}(\w+)", given.rstrip(")")) == named, code
    fixtures = {name for name in vars(pytest_plugin) if name.startswith("lockapp_")}
    assert fixtures == set(re.findall(r"`(lockapp_\w+)`", text))
    assert fixtures == first_words(section(TESTS, "With pytest"))


def test_what_a_locked_class_says_is_documented() -> None:
    """The mixin's attributes and method."""
    own = {name for name in vars(LockedViewMixin) if not name.startswith("_")}
    assert first_words(section(API, "Views")) == own - {"as_view", "dispatch"}


def test_the_other_modules_are_documented() -> None:
    """Decorators, Celery, the audit log's questions."""
    assert set(lockapp.celery.__all__) <= set(CODE.findall(section(API, "Celery")))
    assert set(decorators.__all__) <= set(CODE.findall(section(API, "Views")))
    asked = {*vars(LockEventQuerySet), *vars(LockHoldQuerySet)}
    questions = {name for name in asked if not name.startswith("_")}
    shown = {name for name in CODE.findall(section(API, "Models")) if "." not in name}
    assert shown == questions - {"naming", "update", "delete"}  # the admin's; refused


# ------------------------------------------------------------------ the tests of the tests


def test_the_reader_of_tables_reads_tables() -> None:
    """Heads and rules are no rows; a comparison of nothing with nothing would always be right."""
    text = (
        "| name | what |\n|---|---|\n| `a(x)`, `b` | c |\n\n| x | y |\n|---|---|\n| `d` | `e` |\n"
    )
    assert first_words(text) == {"a", "b", "d"}
    assert anchor("`OPTIONS`") == "options"
    assert anchor("Fencing: keep the late write out") == "fencing-keep-the-late-write-out"
    assert {"acquire", "wait_s", "name"} <= own_names(Lock)
    assert {"fence", "lost", "waited"} <= own_names(Lease)
