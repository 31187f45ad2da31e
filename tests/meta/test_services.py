"""An absent service skips its tests with the reason; REQUIRE_SERVICES=1 makes that a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers import free_port
from tests.services import PROBES, why_absent

SAMPLE = """
import pytest

@pytest.mark.needs("postgres")
def test_marked():
    pass

def test_by_fixture(service):
    service("postgres")

def test_needs_nothing():
    pass
"""


@pytest.fixture
def absent(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small suite of its own, whose PostgreSQL is at a port where nobody listens."""
    monkeypatch.setenv(
        "LOCKAPP_TEST_POSTGRES_URL", f"postgresql://postgres@127.0.0.1:{free_port()}/test"
    )
    monkeypatch.delenv("REQUIRE_SERVICES", raising=False)
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    # The marker is registered by the project's configuration, which a suite elsewhere lacks.
    pytester.makeini("[pytest]\nmarkers = needs(*services): as in the project\n")
    pytester.makepyfile(SAMPLE)
    return pytester


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    """Run the small suite with the project's service machinery."""
    arguments = ("-p", "tests.services", "-p", "no:django", "-p", "no:cacheprovider", "-ra")
    return pytester.runpytest_subprocess(*arguments)


def test_an_absent_service_skips_with_the_reason(
    absent: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary says which service, where it was looked for and what went wrong."""
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    result = run(absent)
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        ["SKIPPED*postgres is not there: postgresql://*LOCKAPP_TEST_POSTGRES_URL*"]
    )


def test_an_absent_service_fails_when_services_are_required(
    absent: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI cannot turn green by skipping."""
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    monkeypatch.setenv("REQUIRE_SERVICES", "1")
    result = run(absent)
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed") == 1
    assert outcomes.get("skipped", 0) == 0
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 2
    result.stdout.fnmatch_lines(["*REQUIRE_SERVICES=1 and postgres is not there*"])


def test_an_unknown_service_is_an_error(service: Callable[[str], str]) -> None:
    """A misspelt name must not skip for ever."""
    with pytest.raises(pytest.fail.Exception, match="unknown service 'postgress'"):
        service("postgress")


@pytest.mark.parametrize("name", sorted(PROBES))
def test_each_service_answers(name: str, service: Callable[[str], str]) -> None:
    """Says in every summary what this run did without."""
    service(name)
    assert why_absent(name) is None
