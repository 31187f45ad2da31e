"""The fixtures of lockapp for pytest, in projects as users have them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin but the one that is asked for by name."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_it_is_announced_to_pytest() -> None:
    """Under the name by which `-p no:lockapp` turns it off."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    announced = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    assert announced == {"lockapp": "lockapp.pytest_plugin"}


def test_fixtures_give_an_engine_and_a_clock_and_see_litter(pytester: pytest.Pytester) -> None:
    """Each test its own engine, whatever the settings say; what is left behind is an error."""
    pytester.makepyfile(
        """
        import pytest
        from lockapp import lock, locks
        from lockapp.testing import held_by_other, override_engine

        def test_time(lockapp_engine, lockapp_clock):
            lease = lock("order", 1, ttl=30).acquire()
            lockapp_clock.advance(31)
            assert lease.lost
            assert locks["default"] is lockapp_engine

        def test_other(lockapp_engine):
            with held_by_other("order", 1):
                assert lock("order", 1).try_acquire() is None

        @pytest.fixture
        def keep():
            kept = []
            yield kept
            kept[0].release()

        def test_litter(keep, lockapp_engine):
            keep.append(lock("order", 7, why="forgotten").acquire())

        @pytest.fixture
        def other_engine():
            with override_engine(alias="other"):
                yield

        def test_litter_anywhere(other_engine, keep, lockapp_no_litter):
            keep.append(lock("order", 8, using="other").acquire())

        def test_clean(lockapp_no_litter):
            pass
        """
    )
    result = pytester.runpytest_inprocess("-p", "lockapp", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, errors=2)
    result.stdout.fnmatch_lines(["*left behind: 'order:7' is held by *why forgotten*"])
    result.stdout.fnmatch_lines(["*left behind: 'order:8' is held by *"])


def test_it_does_no_harm_without_django_settings(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports neither Django nor an engine before a fixture is asked for."""
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_imported(request):
            assert request.config.pluginmanager.get_plugin("lockapp").lockapp_engine
            assert not [name for name in sys.modules if name.partition(".")[0] == "django"]
            assert "lockapp.handler" not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-p", "lockapp", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
