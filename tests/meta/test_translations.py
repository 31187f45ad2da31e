"""The translation check sees each kind of drift (it would be easy for it to see nothing)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import translations

PYTHON = """
from django.utils.translation import gettext_lazy as _, ngettext, pgettext_lazy
A = _("live locks")
B = ngettext("%d waiter", "%d waiters", 2)
C = pgettext_lazy("state", "free")
"""
TEMPLATE = """{% load i18n %}
<p class="it's">{% translate "Release (now)" %}</p>
    {% blocktranslate trimmed count n=n %}
      {{ n }} lock
    {% plural %}
      {{ n }} locks
    {% endblocktranslate %}
{% translate 'Say "why"' context "form" %}
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small app with two files of messages and a finished Chinese translation."""
    app = tmp_path / "lockapp"
    (app / "templates").mkdir(parents=True)
    (app / "words.py").write_text(PYTHON)
    (app / "templates" / "page.html").write_text(TEMPLATE)
    monkeypatch.setattr(translations, "ROOT", tmp_path)
    monkeypatch.setattr(translations, "APP", app)
    monkeypatch.setattr(translations, "LOCALE", app / "locale")
    translations.update(["zh_Hans"])
    po = app / "locale/zh_Hans/LC_MESSAGES/django.po"
    po.write_text(
        po.read_text().replace('msgstr ""\n', 'msgstr "字"\n').replace('[0] ""', '[0] "字"')
    )
    # The header is the entry with an empty id; it holds more than one line and must stay.
    po.write_text(po.read_text().replace('msgid ""\nmsgstr "字"\n', 'msgid ""\nmsgstr ""\n'))
    translations.update([])
    return app


def test_messages_of_python_and_templates_are_found(app: Path) -> None:
    """Plurals, contexts, quotes and parentheses included."""
    ids = translations._ids(translations.source_catalog())
    assert ids == {
        (None, "live locks"),
        (None, ("%d waiter", "%d waiters")),
        ("state", "free"),
        (None, "Release (now)"),
        (None, ("%(n)s lock", "%(n)s locks")),
        ("form", 'Say "why"'),
    }


def test_a_finished_translation_passes(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is reported where nothing is wrong."""
    assert translations.check() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("words.py", "live locks", "all locks"), "missing: 'all locks'"),
        (("words.py", "live locks", "all locks"), "no longer used: 'live locks'"),
        (("locale/zh_Hans/LC_MESSAGES/django.po", '"字"', '"锁"'), "out of step"),
        (("locale/zh_Hans/LC_MESSAGES/django.po", 'msgstr "字"', 'msgstr ""'), "not translated"),
        (
            ("locale/zh_Hans/LC_MESSAGES/django.po", 'msgid "live', '#, fuzzy\nmsgid "live'),
            "fuzzy: 'live locks'",
        ),
    ],
)
def test_drift_is_reported(
    app: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str, str],
    told: str,
) -> None:
    """A new or changed message, an old `.mo`, an empty or doubtful translation."""
    name, old, new = change
    path = app / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert translations.check() == 1
    assert told in capsys.readouterr().out


def test_a_missing_compiled_file_is_reported(app: Path) -> None:
    """Django reads only the compiled form."""
    (app / "locale/zh_Hans/LC_MESSAGES/django.mo").unlink()
    assert translations.check() == 1
