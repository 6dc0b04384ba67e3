"""Which trial an idle worker gets next."""

from collections.abc import Hashable

from sweeps.study.trial import Trial


class Schedule:
    """Pending trials and what is known of compiled programs.

    The first trial of a program warms JAX's persistent cache before others of it start elsewhere;
    a worker prefers programs that it has in memory, then ones that nobody compiles yet.
    """

    def __init__(self) -> None:
        self.pending: list[Trial] = []
        self._warm: set[Hashable] = set()
        self._warming: dict[Hashable, int] = {}
        self._in_memory: dict[int, set[Hashable]] = {}

    def add(self, trials: list[Trial]) -> None:
        """Puts trials behind those that are pending."""
        self.pending += trials

    def take_all(self) -> list[Trial]:
        """Takes everything that is pending."""
        taken, self.pending = self.pending, []
        return taken

    def next_for(self, slot: int) -> Trial | None:
        """Takes a trial for a worker; None where it should wait or nothing is left."""
        mine = self._in_memory.get(slot, set())
        ranked = (
            lambda program: program in mine,
            lambda program: program not in self._warm and program not in self._warming,
            lambda program: program in self._warm,
        )
        for suits in ranked:
            for trial in self.pending:
                if suits(trial.program):
                    return self._take(trial, slot)
        return None

    def _take(self, trial: Trial, slot: int) -> Trial:
        self.pending.remove(trial)
        if trial.program not in self._warm:
            self._warming.setdefault(trial.program, slot)
        return trial

    def compiled(self, program: Hashable, slot: int) -> None:
        """Notes that a worker has compiled or loaded a program."""
        self._warm.add(program)
        self._warming.pop(program, None)
        self._in_memory.setdefault(slot, set()).add(program)

    def put_back(self, trial: Trial) -> None:
        """Makes a trial pending again, to be tried first."""
        self.pending.insert(0, trial)

    def forget(self, slot: int) -> None:
        """Notes that a worker's process is gone, with what it had in memory or was compiling."""
        self._in_memory.pop(slot, None)
        self._warming = {p: s for p, s in self._warming.items() if s != slot}

    def gave_up(self, program: Hashable, slot: int) -> None:
        """Notes that a worker ended a trial before it had compiled the program."""
        if self._warming.get(program) == slot:
            del self._warming[program]
