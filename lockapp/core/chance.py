"""Chance, for spreading what many processes would do at the same moment.

The operating system's: an application that seeds the module ``random``, or a test runner that does,
would make all its processes draw the same numbers and so meet again; and what is drawn here would
take numbers away from it. It needs no care after a fork.
"""

from __future__ import annotations

from random import SystemRandom

chance = SystemRandom()
