"""Run a command that ends when the process that wanted it ends, even if that is killed by SIGKILL.

Used as a script, ``python -I tether.py <parent pid> command …``, and replaced by the command: what
it arranges with the kernel survives ``exec``. Imports nothing of the project, to be quick. On
systems other than Linux it only runs the command; there the runner's own clean-up has to do, which
every ending but SIGKILL reaches.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        # The parent may have died before the call above: then no signal will ever come.
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
