"""What the processes of a trial agree on, without processes: threads on a store in memory."""

import concurrent.futures
import threading
import time

import pytest

from sweeps.distributed import bootstrap, process_group
from sweeps.launchers.protocol import AGAIN


class MemoryStore:
    """JAX's key-value store, for threads; `gone` makes it fail as a lost service does."""

    def __init__(self):
        self._values, self._changed, self.gone = {}, threading.Condition(), False

    def key_value_set(self, key, value):
        with self._changed:
            self._check()
            if key in self._values:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, timeout_ms):
        with self._changed:
            self._changed.wait_for(lambda: self.gone or key in self._values, timeout_ms / 1000)
            self._check()
            if key not in self._values:
                raise RuntimeError("DEADLINE_EXCEEDED: not there")
            return self._values[key]

    def _check(self):
        if self.gone:
            raise RuntimeError("UNAVAILABLE: the service is gone")

    def lose(self):
        with self._changed:
            self.gone = True
            self._changed.notify_all()


class Group:
    """`count` members on one store; how each ended, if it did."""

    def __init__(self, count):
        self.store, self.codes, self.left = MemoryStore(), {}, []
        self.members = [self._member(count, number) for number in range(count)]

    def _member(self, count, number):
        return process_group.ProcessGroup(
            bootstrap.Processes(count, number, "memory:1"),
            self.store,
            lambda: self.left.append(number),
            lambda code: self.codes.setdefault(number, code),
        )

    def on_all(self, work):
        """Returns what work(member) returned or raised, of all members at once."""
        with concurrent.futures.ThreadPoolExecutor(len(self.members)) as pool:
            futures = [pool.submit(work, member) for member in self.members]
        return [future.exception() or future.result() for future in futures]


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(process_group, "_LOOK_S", 0.01)
    monkeypatch.setattr(process_group, "_LAST_WORDS_S", 0.0)
    made = Group(3)
    yield made
    made.store.lose()


def _take_orders(member):
    """The primary gives two orders and ends all; returns what a member was told to do."""
    if member.is_primary:
        for trial in ("a", "b"):
            member.order(trial=trial)
        member.end(code=7)
        return ["a", "b", 7]
    told = []
    while (order := member.next_order(lambda: False))["kind"] != "end":
        told.append(order["trial"])
    member.leave()
    return [*told, order["code"]]


def test_all_hear_the_same_orders_and_leave(group):
    assert group.on_all(_take_orders) == [["a", "b", 7]] * 3
    assert sorted(group.left) == [0, 1, 2]


def _order(group, work):
    """Has all do `work` within an order, as they train."""

    def begin(member):
        if member.is_primary:
            member.order(trial="one")
        else:
            member.next_order(lambda: False)
        return work(member)

    return group.on_all(begin)


@pytest.mark.parametrize("who", [0, 2])
def test_an_order_to_stop_takes_effect_at_one_step_of_all(group, who):
    """Whoever hears it, and however far apart they are."""
    stopped = []

    def train(member):
        member.on_stop = lambda: stopped.append(member._found.id)
        for step in range(5 * member._found.id, 10_000):
            time.sleep(0.001)
            if member.stops(member._found.id == who and step >= 20, step):
                return step
        return None

    steps = _order(group, train)
    assert len(set(steps)) == 1
    assert steps[0] is not None
    assert steps[0] >= 20
    assert sorted(stopped) == [0, 1, 2]


def test_what_the_primary_alone_does_succeeds_or_fails_for_all(group):
    done = []

    def work(member):
        member.on_primary(lambda: done.append(member._found.id))
        assert member.on_primary(lambda: ["told", 1]) == ["told", 1]
        member.on_primary(lambda: 1 / 0)

    mine, *theirs = _order(group, work)
    assert done == [0]
    assert isinstance(mine, ZeroDivisionError)
    assert {str(problem) for problem in theirs} == {"ZeroDivisionError: division by zero"}
    assert {type(problem) for problem in theirs} == {process_group.PrimaryError}
    for member, problem in zip(group.members, [mine, *theirs], strict=True):
        member.failed(problem)  # all know of it, so that nobody ends
        assert not member.broken


@pytest.mark.parametrize(
    ("problem", "kind"),
    [(MemoryError("full"), process_group.PeerError), (ValueError("no"), ValueError)],
)
def test_a_member_that_fails_ends_the_others_and_says_why(group, problem, kind, wait_until):
    heard = []
    group.members[0].on_failure = heard.append
    group.members[1].failed(problem)
    wait_until(lambda: len(group.codes) == 2)
    assert group.codes == {0: AGAIN, 2: AGAIN}
    assert all(member.broken for member in group.members)
    assert type(heard[0]) is kind  # what a trial is not tried again after, and what it is
    assert f"process 1 of 3 ({bootstrap.socket.gethostname()}): {type(problem).__name__}" in str(
        heard[0]
    )


def test_a_failed_collective_is_another_process_that_is_lost(group):
    lost = ValueError("UNKNOWN: Gloo all-reduce failed")  # as XLA raises it
    with pytest.raises(process_group.PeerError, match="process 2 of 3 .* lost another one: Value"):
        group.members[2].failed(lost)


def test_memory_that_is_full_is_no_lost_process(group):
    memory = ValueError("RESOURCE_EXHAUSTED: out of memory")
    assert group.members[1].failed(memory) is None


def test_without_the_primary_process_all_end(group, capfd, wait_until):
    group.store.lose()
    wait_until(lambda: len(group.codes) == 3)
    assert set(group.codes.values()) == {AGAIN}
    assert "the primary process cannot be reached: UNAVAILABLE" in capfd.readouterr().err


def test_a_single_process_asks_nobody():
    one, done = process_group.SingleProcess(), []
    one.order(trial="a")
    assert one.on_primary(lambda: done.append(1) or True) is True
    assert done == [1]
    assert [one.stops(wanted, 3) for wanted in (True, False)] == [True, False]
    one.failed(ValueError("mine"))
    one.end()
    assert not one.broken
