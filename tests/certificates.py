"""A certificate for the loopback address, made for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(openssl: str, folder: Path) -> tuple[Path, Path]:
    """Make one that vouches for itself; return it and its key."""
    paths = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2"]
    command += ["-subj", "/CN=lockapp test", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True)
    return paths
