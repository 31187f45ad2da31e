"""When the node of a lock is deleted that this process has left."""

from __future__ import annotations

from lockapp.engines.zookeeper.parents import TIDY_S, Parents


def test_a_lock_is_known_while_somebody_stands_in_its_queue_and_a_moment_longer() -> None:
    """And due once that moment is over, one time."""
    parents = Parents()
    assert not parents.known("a")
    parents.enter("a")
    parents.enter("a")
    parents.leave("a", 10.0)
    assert parents.known("a")
    assert parents.next() is None
    parents.leave("a", 11.0)
    assert parents.known("a")
    assert parents.next() == 11.0 + TIDY_S
    assert parents.take_due(11.0, all_left=False) == []
    assert parents.take_due(11.0 + TIDY_S, all_left=False) == ["a"]
    assert not parents.known("a")
    assert parents.next() is None


def test_who_comes_back_keeps_it() -> None:
    """Nothing is deleted below a node of ours."""
    parents = Parents()
    parents.enter("a")
    parents.leave("a", 10.0)
    parents.enter("a")
    assert parents.take_due(20.0, all_left=True) == []
    parents.put_off("a", 20.0)
    assert parents.take_due(30.0, all_left=True) == []


def test_what_could_not_be_deleted_is_due_again_and_what_is_gone_is_not() -> None:
    """In the order of their times."""
    parents = Parents()
    for number, lock in enumerate("abc"):
        parents.enter(lock)
        parents.leave(lock, float(number))
    assert parents.take_due(0.0 + TIDY_S, all_left=False) == ["a"]
    parents.put_off("a", 5.0)
    parents.missing("b")
    assert parents.next() == 2.0 + TIDY_S
    assert parents.take_due(2.0 + TIDY_S, all_left=False) == ["c"]
    assert parents.take_due(5.0, all_left=True) == ["a"]
