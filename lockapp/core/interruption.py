"""Interruptions: exceptions that say to stop, and nothing about the work they struck.

Those that Python itself raises (KeyboardInterrupt, cancellation) are no `Exception` and pass every
``except Exception``. Celery's soft time limit is one: whoever goes on after errors must look.
"""

from __future__ import annotations

import sys


def is_interruption(error: object) -> bool:
    """Whether an exception is a soft time limit that struck here."""
    billiard = sys.modules.get("billiard.exceptions")  # nobody raises it who has not imported it
    return isinstance(error, getattr(billiard, "SoftTimeLimitExceeded", ()))
