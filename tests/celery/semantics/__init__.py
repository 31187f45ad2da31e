"""What becomes of the lock and of the task, event by event: one table, which is page and tests.

`table.py` has the rows. `words.py` has what a cell can say, each with the check that proves it,
`steps.py` and `senders.py` how an event is brought about on a real worker, and `bodies.py` the
tasks that run there.
`python -m tests.celery.semantics --write` writes the page.
"""

VALUE = "done"
"""What a body of the table returns."""

BRIEF_TTL_S = 3
"""The ttl of the tasks whose lease is to run out. That of the others is ten times as long."""

PASSING_TTL_S = 2
"""The `queued_ttl` of the tasks whose place in the queue is to run out."""
