"""A payment provider: a web server of its own that charges once per Idempotency-Key.

Run by test_idempotency_processes.py. POST /charges charges; while the gate is shut it answers no
charge, though it has charged. POST /gate/shut and /gate/open. GET /charges lists all charges.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

charges: dict[str, str] = {}
lock = threading.Lock()
gate = threading.Event()
gate.set()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        """Charge, or move the gate."""
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/gate/shut":
            gate.clear()
        elif self.path == "/gate/open":
            gate.set()
        else:
            with lock:
                key, new = self.headers["Idempotency-Key"], f"ch-{len(charges)}"
                charge = charges.setdefault(key, new)
            gate.wait()
            return self.answer({"charge": charge, "new": charge == new})
        return self.answer({})

    def do_GET(self) -> None:
        """List all charges."""
        self.answer(sorted(charges.values()))

    def answer(self, what: object) -> None:
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
