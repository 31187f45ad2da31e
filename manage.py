#!/usr/bin/env python
"""Run Django's command line with the settings of the demo shop; nothing else lives here."""

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    """Run the command named on the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
