"""Trials handed to an engine as jobs; jobs of earlier drivers are adopted."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.monitoring import view
from sweeps.monitoring.progress import Progress
from sweeps.records import clock, code_snapshot, submissions
from sweeps.records.submissions import Batch
from sweeps.scheduling.engines import Engines
from sweeps.scheduling.places import Places, SubmittedJob, batches_of
from sweeps.study.study import Study
from sweeps.study.trial import WorkItem, jobs_of
from workloads import catalog

# Before the engine is tried again after it refused, or dropped, jobs.
_PAUSE_S = 60.0
# Trials that jobs of this host share: each lost job has its list written anew, for its successor.
_MOST_SHARED = 1000
_HOSTS_AVOIDED = 16
# glibc would give every large buffer of a step back to the kernel and fault it in again for the
# next: keeping them saves 15 % of a digits_vit step (44.8 to 38.1 ms on one core).
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class Submitter:
    """Submits the trials that wait.

    platform: what jobs must compute on, '' for whatever a node has. changed: settings of the study
    that are not those of its study.json. `say_once` gets what stays true for a while. avoid: hosts
    that could not run a job.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        launcher: Launcher,
        engines: Engines,
        places: Places,
        say_once: Callable[[str], None],
        platform: str = "",
        changed: Mapping[str, Any] | None = None,
    ) -> None:
        self._study, self._progress, self._say_once = study, progress, say_once
        self._launcher, self._engines, self._places = launcher, engines, places
        self._platform, self._changed = platform, changed
        self.name = str(study.settings["launcher"])
        # None: the trials of a stage are shared by as many jobs as there may be.
        self._trials_per_job: int | None = study.settings[self.name].get("trials_per_job")
        row = catalog.get(study.workload)
        modules = (row.name, row.factory, row.data) if catalog.module_of(row.name) else ()
        snapshot = code_snapshot.take(study.directory, modules)
        self._environment = _MALLOC | code_snapshot.environment(snapshot)
        self.avoid: dict[str, None] = {}
        self._has_submitted = False
        self._wait_until = 0.0

    def adopt(self) -> None:
        """Adopts jobs of earlier drivers that hold unfinished trials and are not gone.

        Jobs of other engines are passed over: a trial's lease tells whether it still runs there.
        """
        jobs: dict[str, SubmittedJob] = {}
        for batch in submissions.batches(self._study.directory, self._say_once):
            if batch.launcher != self.name or self._places.left.keys().isdisjoint(batch.paths):
                continue
            handles = batch.handles
            if handles is None:
                self._places.unconfirmed.append(batch)
            else:
                jobs |= self._places.jobs_of(batch, handles)
        states = self._engines.status(batches_of(jobs))
        adopted = {handle: job for handle, job in jobs.items() if states[handle] is not State.GONE}
        self._places.jobs |= adopted
        if adopted:
            self._progress.say(f"{len(adopted)} jobs of an earlier driver are taken up")

    def confirm(self) -> None:
        """Asks the engine for batches whose submission was cut short before it was recorded."""
        places = self._places
        for batch in list(places.unconfirmed):
            try:
                handles = self._engines.of(batch).find(batch)
            except EngineError as error:
                self._say_once(f"{error}; nothing is submitted twice, so this waits")
                continue
            if batch.handles is None:  # its own driver knows better what it has submitted
                batch.record(handles or [])
            places.unconfirmed.remove(batch)
            places.jobs |= places.jobs_of(batch, batch.handles or [])
            self.queue(sorted(batch.paths & places.left.keys()))

    def queue(self, paths: Iterable[str]) -> None:
        """Has trials wait for a job if no job has them, or may have them."""
        places = self._places
        if self._trials_per_job is None:  # a job that shares trials has those that it has claimed
            for handle, job in places.jobs.items():
                for path in job.read_claims():
                    self.note_claim(handle, job, path)
            taken = places.claimed().union(*(batch.paths for batch in places.unconfirmed))
        else:
            taken = places.held()
        places.waiting.update((path, places.left[path]) for path in paths if path not in taken)

    def note_claim(self, handle: str, job: SubmittedJob, path: str) -> None:
        """Shows a trial as started that a job has claimed; it waits no more."""
        self.note_started(handle, job, [path])
        self._places.waiting.pop(path, None)

    def note_started(self, handle: str, job: SubmittedJob, paths: Iterable[str]) -> None:
        """Shows trials of a job as started."""
        for path in paths:
            if path in self._places.left:
                self._progress.started(job.trials[path], f"{self.name} job {handle}")

    def hold_back(self) -> None:
        """Delays submissions that may fail again at once.

        A file system cut a turn short, an engine refused jobs, or a job never started.
        """
        self._wait_until = clock.clock.monotonic() + _PAUSE_S

    def submit(self) -> None:
        """Submits trials that wait, as many as the engine takes."""
        places = self._places
        # Ray's capacity is a question to the cluster: nobody asks while nothing is to be submitted.
        if not places.waiting or clock.clock.monotonic() < self._wait_until:
            return
        capacity = self._launcher.capacity()
        free = capacity - len(places.jobs) - sum(batch.size for batch in places.unconfirmed)
        wanted = -(-len(places.waiting) // (self._trials_per_job or 1))
        # Few large batches: an engine takes an array of a hundred as easily as one job.
        if free < min(wanted, max(1, len(places.jobs) // 10)):
            return
        most = free * self._trials_per_job if self._trials_per_job else _MOST_SHARED
        waiting = itertools.islice(places.waiting.values(), most)
        if self._trials_per_job is None:
            together = list(itertools.chain(*jobs_of(waiting, most)))
            # If no other job has them, the next slots to be free are for them, too.
            has_others = not places.held().isdisjoint(trial.path for trial in together)
            jobs = free if has_others else capacity
            self.submit_jobs([together], min(jobs, len(together)))
            return
        self.submit_jobs(jobs_of(waiting, self._trials_per_job)[:free])

    def submit_jobs(self, groups: list[list[WorkItem]], sharing: int = 1) -> None:
        """Submits a job for each group of trials, or `sharing` jobs that share them.

        Raises ValueError if the engine does not take the first jobs of this driver.
        """
        places = self._places
        batch = submissions.new(
            self._study.directory,
            self.name,
            [tuple(trial.path for trial in group) for group in groups],
            self._environment,
            tuple(self.avoid)[-_HOSTS_AVOIDED:],
            self._platform,
            self._launcher.place,
            sharing,
            self._changed,
        )
        # Whatever happens until its handles are on disk: the engine is asked by the batch's name.
        places.unconfirmed.append(batch)
        for path in batch.paths:
            places.waiting.pop(path, None)
        is_first = not self._has_submitted and not places.jobs
        try:
            if is_first:
                self._ask_before(batch)
            handles = self._launcher.submit(batch)
        except EngineError as error:
            if is_first:
                self.confirm()  # what the engine refused is noted as not submitted
                raise ValueError(f"{self.name} does not take the jobs: {error}") from error
            self._say_once(f"{error}; tried again in a minute")
            self.avoid.clear()  # there may be no other host
            self.hold_back()
            return
        self._has_submitted = True
        batch.record(handles)
        places.unconfirmed.remove(batch)
        places.jobs |= places.jobs_of(batch, handles)
        jobs = view.plural("job", len(handles))
        self._progress.say(f"{len(handles)} {jobs} submitted as {batch.name}")

    def _ask_before(self, batch: Batch) -> None:
        """Raises EngineError if the engine cannot be asked.

        The batch is noted as not submitted then: the next driver does not wait for it.
        """
        try:
            self._launcher.find(batch)
        except EngineError:
            batch.record([])
            self._places.unconfirmed.remove(batch)
            raise
