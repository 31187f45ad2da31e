"""Keep the translations of lockapp in step with its source, without gettext's programs.

`python -m tools.translations update` collects the messages of Python files and templates, merges
them into each `locale/*/LC_MESSAGES/django.po` and compiles the `.mo` beside it; `check` fails when
a message is missing, untranslated, fuzzy or no longer used, or when a `.mo` says something else
than its `.po`.
"""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import read_mo, write_mo
from babel.messages.pofile import read_po, write_po
from django.conf import settings
from django.utils.translation.template import templatize

ROOT = Path(__file__).parent.parent
APP = ROOT / "lockapp"
LOCALE = APP / "locale"

KEYWORDS: dict[str, object] = {
    name: spec
    for base, spec in {
        "gettext": None,
        "ngettext": (1, 2),
        "pgettext": ((1, "c"), 2),
        "npgettext": ((1, "c"), 2, 3),
    }.items()
    for name in (base, f"{base}_lazy", f"{base}_noop")
} | {"_": None}

MessageId = tuple[str | None, str | tuple[str, ...]]


def messages() -> Iterator[tuple[str, int, object, str | None]]:
    """Yield (file, line, id, context) of each message in the source of lockapp."""
    for path in sorted([*APP.rglob("*.py"), *APP.rglob("*.html"), *APP.rglob("*.txt")]):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".py":
            text = _as_python(text, name)
        found = extract("python", io.BytesIO(text.encode()), KEYWORDS, ["Translators:"])
        for line, message, _comments, context in found:
            yield name, line, message, context


def source_catalog() -> Catalog:
    """Return a catalogue of all messages in the source."""
    catalog = Catalog(project="django-lockapp", charset="utf-8")
    for name, line, message, context in messages():
        catalog.add(message, locations=[(name, line)], context=context)
    return catalog


def _as_python(text: str, name: str) -> str:
    """Turn a template into the pseudo-Python that Django hands to xgettext, one call a line."""
    pseudo = templatize(text, origin=name)
    # What lies between the calls is blotted-out markup that Python's tokenizer would stumble over.
    inside = r"""(?:[^()'"]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")*"""
    calls = rf"\b(?:gettext|ngettext|pgettext|npgettext|_)\({inside}\)"
    lines: dict[int, list[str]] = {}
    for match in re.finditer(calls, pseudo):
        lines.setdefault(pseudo.count("\n", 0, match.start()), []).append(match[0])
    last = max(lines, default=-1)
    return "\n".join("; ".join(lines.get(number, [])) for number in range(last + 1)) + "\n"


def po_files() -> list[Path]:
    """Return the translations there are."""
    return sorted(LOCALE.glob("*/LC_MESSAGES/django.po"))


def _read(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, locale=path.parent.parent.name)


def _ids(catalog: Catalog) -> set[MessageId]:
    return {(message.context, message.id) for message in catalog if message.id}


def _strings(catalog: Catalog) -> dict[object, tuple[str, ...]]:
    """Return {(context, ids): strings}; a compiled file has lists where a text file has tuples."""

    def parts(value: object) -> tuple[str, ...]:
        return tuple(value) if isinstance(value, list | tuple) else (str(value),)

    # A fuzzy or empty message is not compiled, and is reported by itself.
    return {
        (message.context, parts(message.id)): parts(message.string)
        for message in catalog
        if message.id and not message.fuzzy and all(parts(message.string))
    }


def _label(message_id: MessageId) -> str:
    text = message_id[1]
    return repr(text if isinstance(text, str) else text[0])


def problems(path: Path, wanted: set[MessageId]) -> Iterator[str]:
    """Yield what is wrong with one translation and its compiled form."""
    catalog = _read(path)
    present = _ids(catalog)
    yield from (f"missing: {_label(each)}" for each in sorted(wanted - present, key=_label))
    yield from (f"no longer used: {_label(each)}" for each in sorted(present - wanted, key=_label))
    for message in catalog:
        strings = message.string if isinstance(message.string, tuple) else (message.string,)
        if not message.id:
            continue
        if message.fuzzy:
            yield f"fuzzy: {_label((message.context, message.id))}"
        elif not all(strings):
            yield f"not translated: {_label((message.context, message.id))}"
    compiled = path.with_suffix(".mo")
    if not compiled.exists():
        yield "not compiled"
        return
    with compiled.open("rb") as file:
        shipped = _strings(read_mo(file))
    if shipped != _strings(catalog):
        yield "the compiled file is out of step with the text"


def check() -> int:
    """Print every problem; return the exit code."""
    wanted = _ids(source_catalog())
    files = po_files()
    if not files:
        print(f"no translations below {LOCALE.relative_to(ROOT)}; {len(wanted)} messages in source")
        # A locale folder without a catalogue, or messages nobody translates, is a mistake.
        return int(LOCALE.exists() or bool(wanted))
    bad = 0
    for path in files:
        for problem in problems(path, wanted):
            print(f"{path.relative_to(ROOT)}: {problem}")
            bad += 1
    print(f"{len(files)} translation(s), {len(wanted)} messages, {bad} problem(s)")
    if bad:
        print("`make messages` merges and compiles; then translate what is left empty")
    return int(bool(bad))


def update(locales: list[str]) -> int:
    """Merge the source's messages into each translation (and those named) and compile it."""
    source = source_catalog()
    paths = {*po_files(), *(LOCALE / each / "LC_MESSAGES" / "django.po" for each in locales)}
    for path in sorted(paths):
        locale = path.parent.parent.name
        catalog = _read(path) if path.exists() else Catalog(locale=locale, charset="utf-8")
        catalog.update(source, no_fuzzy_matching=True)
        catalog.obsolete.clear()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            write_po(file, catalog, width=100, sort_output=True, include_lineno=False)
        with path.with_suffix(".mo").open("wb") as file:
            write_mo(file, catalog)
        empty = sum(1 for each in catalog if each.id and not each.string)
        print(f"{path.relative_to(ROOT)}: {len(catalog)} messages, {empty} to translate")
    return 0


def main(arguments: list[str]) -> int:
    """Run `check`, or `update [LOCALE...]`."""
    settings.configure(USE_I18N=True)
    match arguments:
        case ["check"]:
            return check()
        case ["update", *locales]:
            return update(locales)
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
