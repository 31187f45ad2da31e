"""Imports point downwards only.

Each module of lockapp has a layer; it may import its own layer and lower ones, and no library
that its layer forbids. Imports inside functions and under TYPE_CHECKING count: a name that is only
needed for an annotation is still a dependency for who reads it. What may break a rule stands in
EXCUSED with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CLIENTS = ("redis", "valkey", "kazoo", "django_redis")
RUNTIME = ("time", "threading", "asyncio", "socket", "select", "selectors", "multiprocessing")
ORM = ("django.db", "django.contrib", "django.apps")


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the table: modules by pattern (first match wins) and what they never import."""

    number: int
    patterns: tuple[str, ...]
    never: tuple[str, ...]


LAYERS = (
    # Pure values, arithmetic and names: no I/O, no clock, no Django.
    Layer(2, ("core.run",), ("django", "celery", *CLIENTS)),
    Layer(0, ("core", "core.*", "exceptions", "naming"), ("django", "celery", *CLIENTS, *RUNTIME)),
    # Procedures: async-coloured, written once against ports.
    Layer(
        1,
        (
            "engines.procedures",
            "engines.*.procedures",
            "engines.*.votes",
            "engines.*.contenders",
            "engines.*.replies",
        ),
        ("django", "celery", *CLIENTS, *RUNTIME),
    ),
    Layer(
        2,
        (
            "engines.*.*_port",
            "engines.*.scripts",
            "engines.*.request",
            "engines.*.errors",
            "engines.*.connection*",
        ),
        ("django", "celery"),
    ),
    Layer(
        3,
        (
            "engines",
            "engines.*",
            "callbacks",
            "degraded",
            "holding",
            "lease",
            "lock",
            "primitives",
            "ways",
            "context",
            "owner",
            "process",
            "watchdog",
            "watchdog_task",
            "watchdog_thread",
        ),
        (*ORM, "celery"),
    ),
    # Wiring to Django.
    Layer(4, ("conf", "handler", "signals", "checks", "apps"), ("django.db", "celery")),
    Layer(
        5,
        (
            "models",
            "querysets",
            "audit",
            "audit.*",
            "fencing",
            "fencing.*",
            "idempotency",
            "migrations",
            "migrations.*",
            "dashboard",
            "dashboard.snapshot",
            "single_flight",
            "single_flight.*",
            "transactions",
        ),
        ("celery", "django.template"),
    ),
    Layer(
        6,
        (
            "celery",
            "celery.*",
            "decorators",
            "decorators.*",
            "mixins",
            "admin",
            "dashboard.*",
            "management",
            "management.*",
            "tasks",
            "templatetags",
            "templatetags.*",
            "metrics",
            "metrics.*",
            "testing",
            "testing.*",
            "pytest_plugin",
        ),
        (),
    ),
)

# Modules that are the same edge as another one.
ONE_EDGE = {
    "admin": "dashboard",
    "templatetags": "dashboard",
    "mixins": "decorators",
    "pytest_plugin": "testing",
}

# Only these may know an optional extra.
EXTRAS = {
    "celery": ("celery", "celery.*", "tasks"),
    "kazoo": ("engines.zookeeper", "engines.zookeeper.*"),
    "prometheus_client": ("metrics.prometheus",),
}

# (module, what it imports): why that is right all the same.
EXCUSED = {
    ("lock", "handler"): "lock(..., using=...) finds its engine by alias when it is first used",
    ("admin", "dashboard.views"): "admin only registers and routes; the pages are the dashboard's",
}


def name_of(path: Path) -> str:
    """Return a module's dotted name below lockapp, "" for the package itself."""
    parts = path.relative_to(ROOT / "lockapp").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted((ROOT / "lockapp").rglob("*.py"))}


PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def layer_of(module: str) -> Layer | None:
    """Return the first layer with a pattern for the module."""
    for layer in LAYERS:
        if any(fnmatchcase(module, pattern) for pattern in layer.patterns):
            return layer
    return None


def edge_of(module: str) -> str:
    """Return which edge a module of layer 6 belongs to; several modules may be one."""
    head = module.split(".", 1)[0]
    return ONE_EDGE.get(head, head)


def imports_of(module: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute name) of everything that a module imports, wherever it does so."""
    package = module.split(".") if module in PACKAGES else module.split(".")[:-1]
    base = ["lockapp", *(part for part in package if part)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = base[: len(base) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from package import module` imports the module.
                full = f"{origin}.{alias.name}"
                is_module = full.removeprefix("lockapp.") in MODULES and full.startswith("lockapp.")
                yield node.lineno, full if is_module else origin


def is_below(name: str, parents: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the parents or inside one."""
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def faults(module: str, source: str) -> Iterator[str]:
    """Yield each import of a module that its layer does not allow."""
    layer = layer_of(module)
    assert layer is not None
    engine = module.split(".")[1] if module.startswith("engines.") else ""
    for line, name in imports_of(module, source):
        where = f"lockapp.{module}, line {line}, imports {name}"
        if name != "lockapp" and not name.startswith("lockapp."):
            if is_below(name, layer.never):
                yield f"{where}: layer {layer.number} never does"
            for extra, owners in EXTRAS.items():
                if is_below(name, (extra,)) and not any(fnmatchcase(module, o) for o in owners):
                    yield f"{where}: only {', '.join(owners)} may know the extra"
            continue
        target = name.removeprefix("lockapp").lstrip(".")
        while target and target not in MODULES:
            target = target.rpartition(".")[0]
        if not target:
            # The package's public names; only an edge may take the user's way in.
            if layer.number < 6:
                yield f"{where}: layer {layer.number} must name the module it wants"
            continue
        other = layer_of(target)
        if other is None or (module, target) in EXCUSED:
            continue
        if other.number > layer.number:
            yield f"{where}: layer {layer.number} may not look up to layer {other.number}"
        if layer.number == other.number == 6 and edge_of(module) != edge_of(target):
            yield f"{where}: the edges don't import each other"
        sibling = target.split(".")[1] if target.startswith("engines.") else ""
        packages = {part for part in (engine, sibling) if f"engines.{part}" in PACKAGES}
        if len(packages) == 2:
            yield f"{where}: one engine never imports another"


def test_every_module_has_a_layer() -> None:
    """A new module must be put somewhere on purpose."""
    assert [name for name in MODULES if name and layer_of(name) is None] == []


@pytest.mark.parametrize("module", [name for name in MODULES if name and layer_of(name)])
def test_imports_point_downwards(module: str) -> None:
    """Each line names the import and the rule."""
    assert list(faults(module, MODULES[module].read_text(encoding="utf-8"))) == []


def test_the_demo_uses_public_names_only() -> None:
    """The demo is what a user could have written."""
    public = ("lockapp", "lockapp.celery", "lockapp.decorators", "lockapp.mixins", "lockapp.tasks")
    found = []
    for path in sorted((ROOT / "demo_site").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            found += [
                f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
                for name in names
                if name.startswith("lockapp.") and name not in public
            ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "line", "rule"),
    [
        ("core.values", "import time", "never does"),
        ("core.values", "def f():\n    import asyncio.tasks", "never does"),
        ("engines.redis.procedures", "from redis import Redis", "never does"),
        ("core.values", "from lockapp.engines import procedures", "may not look up"),
        ("core.values", "from ..engines import procedures", "may not look up"),
        ("handler", "from celery import shared_task", "never does"),
        ("audit.collector", "import kazoo.client", "only engines.zookeeper"),
        ("core.values", "from lockapp import Lease", "must name the module"),
    ],
)
def test_the_rules_see_a_breach(module: str, line: str, rule: str) -> None:
    """A check that cannot fail proves nothing."""
    assert rule in "\n".join(faults(module, line))
