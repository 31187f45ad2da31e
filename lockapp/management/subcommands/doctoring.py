"""``doctor`` says what endangers locks on this site, the gravest first, and what to do."""

from __future__ import annotations

from typing import Any

from django.core import checks
from django.core.management.base import CommandError, CommandParser

from lockapp.dashboard.snapshot import printable
from lockapp.management import diagnosis
from lockapp.management.diagnosis import Finding, Visit
from lockapp.management.subcommands.base import FOUND, Subcommand

LEVELS = {"ERROR": checks.ERROR, "WARNING": checks.WARNING, "INFO": checks.INFO}


class Doctor(Subcommand):
    """Examine settings, servers and audit log."""

    name = "doctor"
    help = "Examine settings, lock servers and audit log; say what is wrong, and the cure."
    json_too = True
    makes_events = True

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument(
            "--fail-level", choices=LEVELS, default="ERROR",
            help="the least grave finding that makes the exit code 5 (default ERROR)",
        )  # fmt: skip

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        engines = diagnosis.engines(options["using"])
        visits = [seen for engine in engines if (seen := diagnosis.visit(engine))]
        findings = [*diagnosis.of_settings(), *(it for seen in visits for it in seen.findings)]
        findings.sort(key=lambda each: each.gravity)
        if options["json"]:
            self.print_json(
                {
                    "engines": [_plain(each) for each in visits],
                    "findings": [{**each._asdict(), "level": _level(each)} for each in findings],
                }
            )
        else:
            self._print(visits, findings)
        grave = [each for each in findings if each.level >= LEVELS[options["fail_level"]]]
        if grave:
            raise CommandError(
                f"{len(grave)} of {len(findings)} findings need you", returncode=FOUND
            )

    def _print(self, visits: list[Visit], findings: list[Finding]) -> None:
        for seen in visits:
            if seen.round_trip_ms is not None:
                where = f"{seen.alias}: {seen.server}, version {seen.version or 'unknown'}"
                self.stdout.write(f"{where}, {seen.round_trip_ms:.2f} ms away")
        for each in findings:
            style = self.style.ERROR if each.level >= checks.ERROR else self.style.WARNING
            head = f"{_level(each):<8}"
            where = f"{each.where}: " if each.where else f"{each.kind}: "
            self.stdout.write((style if each.level > checks.INFO else str)(head), ending="")
            self.stdout.write(f" {where}{printable(each.text)}")
            if each.cure:
                self.stdout.write(f"{'':<9}→ {each.cure}")
        if not findings:
            self.stdout.write(self.style.SUCCESS("Nothing was found that endangers locks."))


def _level(finding: Finding) -> str:
    """Return the name of the level at or below a finding's own."""
    return next((name for name, level in LEVELS.items() if finding.level >= level), "INFO")


def _plain(seen: Visit) -> dict[str, Any]:
    return {
        "engine": seen.alias,
        "server": seen.server,
        "version": seen.version,
        "round_trip_ms": seen.round_trip_ms,
    }
