"""What must never happen in a simulated sweep, looked for at every rename and at the end."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Callable

from sweeps.records import layout, lease, measurements, status
from sweeps.scheduling.places import Places
from sweeps.study.trial import Trial
from tests.sweeps.chaos import equality
from tests.sweeps.simulation.world import Actor, World


def misplaced(places: Places) -> list[str]:
    """Returns trials that a scheduler has lost between two turns, or has in two places.

    Each that is left waits, is watched, or jobs have it. None of those excludes that a job that
    shares its trials may still claim one: only its claim does.
    """
    waiting, watched, claimed = set(places.waiting), set(places.watched), places.claimed()
    lost = places.left.keys() - waiting - watched - places.held()
    twice = (waiting & watched) | (waiting & claimed)
    finished = waiting - places.left.keys()
    return sorted(lost | twice | finished)


@dataclasses.dataclass
class _Holder:
    number: int
    process: Actor
    ended: bool = False


class Referee:
    """Follows claims, outcomes and writes to trials' shared files.

    checkpoints: the last step saved, by trial's path; stands in for the directory of that name.
    """

    def __init__(self, world: World, root: pathlib.Path) -> None:
        self.world, self.root = world, str(root)
        self.checkpoints: dict[str, int] = {}
        self.completions: collections.Counter[str] = collections.Counter()
        self.attempts = 0
        self._holders: dict[str, _Holder] = {}

    def is_complete(self, path: str) -> bool:
        """Returns whether a trial, by its path within the study, has been done."""
        return f"{self.root}/{path}" in self.completions

    def violated(self, text: str) -> None:
        """Notes that something happened that must not."""
        self.world.violations.append(f"at {self.world.now:.0f} s: {text}")

    def renamed(self, target: str) -> None:
        """Called after each rename below the study."""
        actor = self.world.actor
        if actor is None or not actor.trains:
            return
        folder, name = os.path.split(target)
        parent, place = os.path.split(folder)
        if place == layout.ATTEMPTS:
            self._claimed(parent, int(name), actor)
        elif name == lease.OUTCOME:
            holder = self._holders[os.path.dirname(parent)]
            holder.ended = holder.ended or holder.number == int(place)
        elif actor.attempt is not None and folder == str(actor.attempt.trial_directory):
            self._shared(folder, name, actor.attempt.number, actor)

    def _claimed(self, trial: str, number: int, process: Actor) -> None:
        before = self._holders.get(trial)
        self.attempts += 1
        self._holders[trial] = _Holder(number, process)
        if before is None or before.ended or process.woke_in_step:
            return  # who slept within its claim may find the other awake again: it fences itself
        silent_s = self.world.now - before.process.beaten_at
        if not before.process.dead and silent_s < lease.EXPIRES_AFTER_S - self.world.cache_s:
            self.violated(
                f"{trial}: attempt {number} was claimed {silent_s:.0f} s after a heartbeat of "
                f"attempt {before.number}, which is alive"
            )

    def _shared(self, trial: str, name: str, number: int, process: Actor) -> None:
        latest = self._holders[trial].number
        if number == latest:
            return
        if process.woke_in_step:  # between its check and its write: no check can exclude that
            self.world.faults["write begun before a sleep, ended after the lease"] += 1
            return
        self.violated(f"{trial}/{name}: written by attempt {number} while {latest} has the trial")

    def completed(self, attempt: lease.Attempt, process: Actor) -> None:
        """Called when a process has written that its trial is done."""
        trial = str(attempt.trial_directory)
        if self._holders[trial].number != attempt.number:
            self.world.faults["done written by a process that had lost its lease"] += 1
            return
        self.completions[trial] += 1
        if self.completions[trial] > 1:
            self.violated(f"{trial}: completed {self.completions[trial]} times")

    def judge(self, trials: list[Trial], is_poison: Callable[[str], bool]) -> None:
        """Looks at the files of every trial once the driver says that the study is complete."""
        for trial in trials:
            directory = pathlib.Path(self.root) / trial.path
            state = status.read(directory)["state"]
            wanted = "failed" if is_poison(trial.path) else "done"
            if wanted == "failed" and state in ("running", "pending"):
                # Started a second time by the engine, begun after it was given up.
                self.world.faults["given up, then begun again by a late job"] += 1
            elif state != wanted:
                self.violated(f"{trial.path} ended as {state}, not {wanted}")
            elif wanted == "done":
                self._judge_done(trial, directory)

    def _judge_done(self, trial: Trial, directory: pathlib.Path) -> None:
        if self.completions[str(directory)] != 1:
            self.violated(f"{trial.path}: completed {self.completions[str(directory)]} times")
        steps = list(range(trial.eval_every, trial.steps + 1, trial.eval_every))
        rows = [row["global_step"] for row in measurements.curve(directory)]
        if rows != steps:
            self.violated(f"{trial.path}: evaluations at {rows}, not at {steps}")
        written = equality.rows(directory, layout.EVAL_MEASUREMENTS)
        published = [int(row["global_step"]) for row in written]
        if published != steps:
            self.violated(f"{trial.path}: published evaluations at {published}, not at {steps}")
