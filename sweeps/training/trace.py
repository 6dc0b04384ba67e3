"""A trace of some updates: `config.profile=100:110`, by jax.profiler.

In <trial>/profile/plugins/profile/<time> lie `perfetto_trace.json.gz`, which ui.perfetto.dev opens,
and what TensorBoard's and XProf's profile views read. Of several processes the primary one's.
"""

import pathlib

import jax


class Trace:
    """Traces updates `first` to `last` − 1 of an attempt: those between the devices' being idle."""

    def __init__(self, profile: str, directory: pathlib.Path) -> None:
        """profile: '<first>:<last>', or '' for none."""
        first, _, last = (profile or "0:0").partition(":")
        self._updates, self._directory = range(int(first), int(last)), directory
        self._runs = False

    def starts(self, done: int, resumed: bool = False) -> bool:
        """Whether to start after `done` updates; `resumed`: also where the attempt begins amid."""
        return done in self._updates and (resumed or done == self._updates.start)

    def ends(self, done: int) -> bool:
        """Whether to end after `done` updates."""
        return bool(self._updates) and done == self._updates.stop

    def start(self) -> None:
        """Begins the trace."""
        jax.profiler.start_trace(self._directory, create_perfetto_trace=True)
        self._runs = True

    def close(self) -> None:
        """Ends a trace that is under way, and writes its files."""
        if self._runs:
            self._runs = False
            jax.profiler.stop_trace()
