"""A study: a checked configuration, its points, its stages, and the trials they consist of."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import ml_collections

from attention import table as variants_table
from sweeps.launchers import remote
from sweeps.records import layout
from sweeps.study import checks, hyperparameters, selection, space, start
from sweeps.study import config as configs
from sweeps.study.start import Start
from sweeps.study.trial import EXTRA_PATHS, Trial
from workloads import algoperf_specs, catalog, init2winit_specs

# Settings that a trial takes over as they are, listed because its id is the hash of what it has: a
# new key of the config must not enter ids because a field of a trial has its name.
_TRIAL_SETTINGS = (
    "steps", "step_hint", "batch_size", "eval_every", "log_every", "checkpoint_every",
    "optimizer", "kernel", "compute_dtype", "param_dtype", "scan_layers", "remat",
    "loss_chunk_tokens", "microbatches", "matmul_precision",
    "checkpoint_minutes", "tensorboard", "profile", "keep_checkpoints", "downstream",
    "init2winit_config",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Study:
    """A checked study. `settings` is the resolved config as plain data; points are completed.

    starts: where trials start, of each variant and seed, where they start from another study's.
    """

    settings: dict[str, Any]
    points: tuple[dict[str, float], ...]
    starts: tuple[Start, ...] = ()

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.settings["name"])

    @property
    def directory(self) -> pathlib.Path:
        """<experiment_dir>/<study>."""
        return pathlib.Path(self.settings["experiment_dir"]) / self.name

    @property
    def workload(self) -> str:
        """The workload's name."""
        return str(self.settings["workload"])

    @property
    def data_dir(self) -> str:
        """Where the workload's data is read: on this host, where the study does not say."""
        return self.settings["data_dir"] or str(catalog.default_data_dir(self.workload))

    @property
    def extra_paths(self) -> dict[str, str]:
        """What the workload must know beside its data: `WorkloadSpec.extra_paths`."""
        names = (*EXTRA_PATHS, init2winit_specs.CONFIG)
        return {name: self.settings[name] for name in names}

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return ("grid",) if self.settings["protocol"] == "grid" else ("tune", "compare")

    def trials(self, stage: str, selection: dict[str, Any] | None = None) -> list[Trial]:
        """Returns a stage's trials; 'compare' needs the selection made after 'tune'."""
        settings, every_point = self.settings, range(len(self.points))
        if stage == "grid":
            pairs = itertools.product(settings["variants"], every_point)
            return self._seeds(stage, pairs, seeds_of(settings, "seeds"))
        if stage == "tune":
            pairs = itertools.product(dict.fromkeys(self.tuned.values()), every_point)
            return self._seeds(stage, pairs, seeds_of(settings, "tuning_seeds"))
        if selection is None:
            raise ValueError("stage 'compare' needs the points that stage 'tune' selects")
        chosen = [(variant, selection["points"][variant]) for variant in settings["variants"]]
        return self._seeds(stage, chosen, seeds_of(settings, "seeds"))

    def _seeds(self, stage: str, pairs: Iterable[tuple[str, int]], seeds: range) -> list[Trial]:
        """Returns the trials of pairs of variant and point, one of each seed."""
        return [
            self._trial(stage, variant, point, seed) for variant, point in pairs for seed in seeds
        ]

    def _trial(self, stage: str, variant: str, point: int, seed: int) -> Trial:
        settings, entry = self.settings, catalog.get(self.workload)
        began = self._starts.get((variant, seed))
        return Trial(
            study=self.name,
            stage=stage,
            workload=self.workload,
            variant=variant,
            variant_hyperparameters=checks.variant_hyperparameters(variant, settings),
            hyperparameters=self.points[point],
            point=point,
            seed=seed,
            targets={
                "metric": entry.metric,
                "validation": entry.validation_target,
                "test": entry.test_target,
            },
            mesh=checks.options(settings).mesh,
            start=began.content if began else "",
            start_from=began.checkpoint if began else "",
            diagnose_every=settings["diagnostics"],
            diagnose_examples=settings["diagnostics_examples"],
            **{name: settings[name] for name in (*_TRIAL_SETTINGS, *EXTRA_PATHS)},
        )

    @functools.cached_property
    def _starts(self) -> dict[tuple[str, int], Start]:
        return {(one.variant, one.seed): one for one in self.starts}

    @property
    def tuned(self) -> dict[str, str]:
        """Each variant's name to that of the variant whose trials choose its point."""
        variants = self.settings["variants"]
        if self.settings["protocol"] == "tune_then_compare":
            return dict.fromkeys(variants, self.settings["tuning_variant"])
        return {variant: variant for variant in variants}

    def tuned_values(self) -> dict[str, dict[int, dict[str, float | None]]]:
        """Returns what 'tune' measured: of each tuned variant and point its trials' best
        validation metrics by path, None for one that is lost (`sweeps.study.selection`).

        Call it when 'tune' is over. Raises ValueError where a trial that is done cannot be read.
        """
        entry = catalog.get(self.workload)
        metric = f"validation/{entry.metric}"
        values: dict[str, dict[int, dict[str, float | None]]] = {}
        for trial in self.trials("tune"):
            value = selection.trial_value(self.directory / trial.path, metric, entry.mode)
            values.setdefault(trial.variant, {}).setdefault(trial.point, {})[trial.path] = value
        return values


def resolve(config: ml_collections.ConfigDict, planning: bool = False) -> Study:
    """Returns the study a config describes, with defaults filled in and everything checked.

    `planning` lets a study whose point another one has yet to select be reckoned with: costs do
    not depend on it. Raises ValueError by name for anything that could not run: nothing is
    started before this.
    """
    settings = config.to_dict()
    configs.check(settings)
    # --config.variants=standard,laser arrives as one string.
    given = [name for names in settings["variants"] for name in names.split(",") if name.strip()]
    if len(given) > configs.MOST_VARIANTS:
        raise ValueError(f"{len(given):,} variants; a study may have {configs.MOST_VARIANTS}")
    settings["variants"] = [variants_table.canonical(name) for name in given]
    for key in ("baseline", "tuning_variant"):
        settings[key] = variants_table.canonical(settings[key])
    entry = catalog.get(settings["workload"])
    for specs in (algoperf_specs, init2winit_specs):
        # Jobs need not have the driver's environment.
        if specs.DIRECTORY in entry.extra_paths and not settings[specs.DIRECTORY]:
            settings[specs.DIRECTORY] = os.environ.get(specs.DIRECTORY_VARIABLE, "")
    is_path = "/" in settings["finetune_from"]  # else the name of a study of experiment_dir
    settings |= configs.paths(settings)
    for key in ("data_dir", *EXTRA_PATHS):
        if settings[key]:  # jobs start in other folders
            settings[key] = str(pathlib.Path(settings[key]).absolute())
    if settings["finetune_from"]:
        beside = "" if is_path else settings["experiment_dir"]
        settings["finetune_from"] = str(pathlib.Path(beside, settings["finetune_from"]).absolute())
    steps = settings["steps"] = settings["steps"] or entry.step_hint
    if not steps:
        raise ValueError(f"{entry.name} has no number of steps of its own; give --config.steps=…")
    settings["step_hint"] = settings["step_hint"] or steps
    if settings[init2winit_specs.CONFIG]:  # ids do not depend on how it is spelt
        fields = init2winit_specs.read_config(settings[init2winit_specs.CONFIG])
        settings[init2winit_specs.CONFIG] = json.dumps(fields, sort_keys=True)
    settings["batch_size"] = settings["batch_size"] or entry.batch_size
    settings["eval_every"] = settings["eval_every"] or max(1, steps // 10)
    settings["checkpoint_every"] = settings["checkpoint_every"] or settings["eval_every"]
    checks.check(settings)
    settings["data_dir"] = settings["data_dir"] or _default_data_dir(settings)
    if lacking := checks.lacking(settings):
        if not planning:
            raise ValueError(lacking)
        configs.warn(f"planned as if it were there; {lacking}")
    raw = _points(settings, planning)
    if len(raw) < settings["points"]:
        configs.warn(
            f"space {settings['space']!r} is a list of {len(raw)} points; "
            f"{settings['points']} were asked, {len(raw)} will run"
        )
        settings["points"] = len(raw)
    return Study(settings, tuple(_completed(raw, settings)), _starts(settings, planning))


def _default_data_dir(settings: dict[str, Any]) -> str:
    """Returns where the data are for a study that does not say: written down, for jobs to read.

    By ATTNPERF_DATA of the launcher's own variables, else of this process, else in this user's
    cache folder. '' where only a node of such a launcher can say: it fills in a variable's `$NAME`,
    and makes embedded data in its own cache folder where there is no ATTNPERF_DATA.
    """
    name, own = settings["workload"], settings[settings["launcher"]]
    environment = {**os.environ, **remote.variables(own.get("environment", ""))}
    folder = environment.get(catalog.DATA_VARIABLE, "")
    is_of_node = "$" in folder or (not folder and catalog.get(name).embedded)
    if "environment" in own and is_of_node:
        return ""
    return str(catalog.default_data_dir(name, environment).absolute())


def seeds_of(settings: dict[str, Any], key: str) -> range:
    """Returns the seeds of a stage; `key` says how many there are: 'seeds' or 'tuning_seeds'."""
    return range(settings["first_seed"], settings["first_seed"] + settings[key])


def _starts(settings: dict[str, Any], planning: bool) -> tuple[Start, ...]:
    if not settings["finetune_from"]:
        return ()
    seeds = seeds_of(settings, "seeds")
    pairs = [(variant, seed) for variant in settings["variants"] for seed in seeds]
    if settings["protocol"] != "grid":
        chosen = [settings["tuning_variant"]]
        tuned = chosen if settings["protocol"] == "tune_then_compare" else settings["variants"]
        seeds = seeds_of(settings, "tuning_seeds")
        pairs += [(variant, seed) for variant in tuned for seed in seeds]
    try:
        return start.find(settings, dict.fromkeys(pairs))
    except start.NotTrainedError as error:
        if not planning:
            raise
        configs.warn(f"planned as if it were trained; {error}")  # costs do not depend on it
        return ()


def _points(settings: dict[str, Any], planning: bool) -> list[space.Point]:
    if not settings["space"].startswith(selection.SELECTED):
        return space.points(space.load(settings["space"]), settings["points"])
    if settings["paper_table"] and not selection.keeps_paper_table(
        settings["space"], settings["experiment_dir"]
    ):
        settings["paper_table"] = ""
        configs.warn(
            f"space {settings['space']!r}: that study was changed from the paper's protocol, so "
            "the paper's table will not stand beside this one's either"
        )
    try:
        name, folder = settings["space"], settings["experiment_dir"]
        return [selection.selected_point(name, folder, configs.shipped_names())]
    except selection.NotSelectedError as error:
        if not planning:
            raise
        configs.warn(f"planned as if the point were known; {error}")
        # Costs do not depend on it; an ε that nobody gave is nothing to warn of.
        return [{**point, "epsilon": 1e-8} for point in space.points(space.load("paper_adamw"), 1)]


def _completed(raw: list[space.Point], settings: dict[str, Any]) -> list[dict[str, float]]:
    completed = []
    for number, point in enumerate(raw):
        try:
            completed.append(hyperparameters.complete(point))
            if init2winit_specs.is_init2winit(settings["workload"]):
                init2winit_specs.check_point(settings["workload"], completed[-1])
        except ValueError as error:
            raise ValueError(f"point {number} of space {settings['space']!r}: {error}") from error
    dtype = settings["param_dtype"]
    warnings = {hyperparameters.check_epsilon(point["epsilon"], dtype) for point in completed}
    for warning in sorted(warnings - {None}, key=str):
        configs.warn(f"space {settings['space']!r}: {warning}")
    return completed


def from_record(record: dict[str, Any], directory: pathlib.Path) -> Study:
    """Returns the study that study.json in `directory` describes.

    Raises ValueError where a setting cannot be, or the folder has another name.
    """
    directory = directory.resolve()
    settings = {**configs.completed(record["config"]), "experiment_dir": str(directory.parent)}
    if directory.name != settings["name"]:
        raise ValueError(
            f"{directory} holds study {settings['name']!r}; give the folder that name again"
        )
    try:
        configs.check(settings)
        catalog.get(settings["workload"])
        for point in record["points"]:
            hyperparameters.complete(point)
        starts = tuple(Start(**one) for one in record.get("starts", ()))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory / layout.STUDY} is damaged: {error}") from error
    # Older studies do not record it.
    settings["data_dir"] = settings["data_dir"] or _default_data_dir(settings)
    return Study(settings, tuple(record["points"]), starts)
