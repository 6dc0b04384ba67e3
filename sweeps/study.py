"""A study: a checked configuration, its points, its stages, and the trials they consist of."""

import dataclasses
import pathlib
from typing import Any

import ml_collections

from attention import table as variants_table
from sweeps import config as configs
from sweeps import hyperparameters, layout, select, space
from sweeps.trial import Trial
from workloads import table as workloads_table

# Keys that may differ when a study on disk is continued: they add trials or change who runs them.
_MAY_CHANGE = (
    "points",
    "seeds",
    "variants",
    "tuning_seeds",
    "experiment_dir",
    "data_dir",
    "loader_workers",
    "launcher",
    "max_attempts",
)


@dataclasses.dataclass(frozen=True)
class Study:
    """A checked study. `settings` is the resolved config as plain data; points are completed."""

    settings: dict[str, Any]
    points: tuple[dict[str, float], ...]

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
        """Where the workload's data is read."""
        return self.settings["data_dir"] or str(workloads_table.default_data_dir(self.workload))

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return ("grid",) if self.settings["protocol"] == "grid" else ("tune", "compare")

    def trials(self, stage: str, selection: dict[str, Any] | None = None) -> list[Trial]:
        """Returns a stage's trials; 'compare' needs the selection made after 'tune'."""
        settings, every_point = self.settings, range(len(self.points))
        if stage == "grid":
            return self._product(stage, settings["variants"], every_point, settings["seeds"])
        if stage == "tune":
            tuned = settings["variants"]
            if settings["protocol"] == "tune_then_compare":
                tuned = [settings["tuning_variant"]]
            return self._product(stage, tuned, every_point, settings["tuning_seeds"])
        if selection is None:
            raise ValueError("stage 'compare' needs the points that stage 'tune' selects")
        return [
            trial
            for variant in settings["variants"]
            for trial in self._product(
                stage, [variant], [selection["points"][variant]], settings["seeds"]
            )
        ]

    def _product(self, stage: str, variants: Any, points: Any, seeds: int) -> list[Trial]:
        return [
            self._trial(stage, variant, point, seed)
            for variant in variants
            for point in points
            for seed in range(seeds)
        ]

    def _trial(self, stage: str, variant: str, point: int, seed: int) -> Trial:
        settings, entry = self.settings, workloads_table.entry(self.workload)
        has_temp = "temp" in variants_table.parse(variant)[1]
        return Trial(
            study=self.name,
            stage=stage,
            workload=self.workload,
            variant=variant,
            variant_hyperparameters={"tau": settings["tau"]} if has_temp else {},
            hyperparameters=self.points[point],
            point=point,
            seed=seed,
            targets={
                "metric": entry.metric,
                "validation": entry.validation_target,
                "test": entry.test_target,
            },
            **{key: settings[key] for key in _TRIAL_SETTINGS},
        )

    def select(self) -> dict[str, Any]:
        """Returns what 'tune' selects, by the rule of `sweeps.select`, for selection.json."""
        entry = workloads_table.entry(self.workload)
        metric = f"validation/{entry.metric}"
        values: dict[str, dict[int, list[float]]] = {}
        for trial in self.trials("tune"):
            value = select.trial_value(self.directory / trial.path, metric, entry.mode)
            found = values.setdefault(trial.variant, {}).setdefault(trial.point, [])
            found += [] if value is None else [value]
        chosen = {
            variant: select.best_point(by_point, entry.mode) for variant, by_point in values.items()
        }
        if self.settings["protocol"] == "tune_then_compare":
            tuning = self.settings["tuning_variant"]
            chosen = dict.fromkeys(self.settings["variants"], chosen[tuning])
        source = {
            variant: self.settings["tuning_variant"]
            if self.settings["protocol"] == "tune_then_compare"
            else variant
            for variant in chosen
        }
        return {
            "metric": metric,
            "mode": entry.mode,
            "from_stage": "tune",
            "points": chosen,
            "trials": {
                variant: layout.trial_path("tune", source[variant], self.workload, point, 0)
                for variant, point in chosen.items()
            },
        }


_TRIAL_SETTINGS = (
    "steps",
    "step_hint",
    "batch_size",
    "eval_every",
    "log_every",
    "checkpoint_every",
    "optimizer",
    "kernel",
    "compute_dtype",
)


def resolve(config: ml_collections.ConfigDict) -> Study:
    """Returns the study a config describes, with defaults filled in and everything checked.

    Raises ValueError by name for anything that could not run: nothing is started before this.
    """
    settings = config.to_dict()
    settings["variants"] = [variants_table.canonical(name) for name in settings["variants"]]
    for key in ("baseline", "tuning_variant"):
        settings[key] = variants_table.canonical(settings[key])
    entry = workloads_table.entry(settings["workload"])
    steps = settings["steps"] = settings["steps"] or entry.step_hint
    settings["step_hint"] = settings["step_hint"] or steps
    settings["batch_size"] = settings["batch_size"] or entry.batch_size
    settings["eval_every"] = settings["eval_every"] or max(1, steps // 10)
    settings["checkpoint_every"] = settings["checkpoint_every"] or settings["eval_every"]
    _check(settings)
    raw = space.points(space.load(settings["space"]), settings["points"])
    if len(raw) < settings["points"]:
        configs.warn(
            f"space {settings['space']!r} is a list of {len(raw)} points; "
            f"{settings['points']} were asked, {len(raw)} will run"
        )
        settings["points"] = len(raw)
    return Study(settings, tuple(_completed(raw, settings)))


def _completed(raw: list[space.Point], settings: dict[str, Any]) -> list[dict[str, float]]:
    completed = []
    for number, point in enumerate(raw):
        try:
            completed.append(hyperparameters.complete(point))
        except ValueError as error:
            raise ValueError(f"point {number} of space {settings['space']!r}: {error}") from error
    return completed


def _check(settings: dict[str, Any]) -> None:
    """Raises ValueError for the first setting that cannot be used."""
    _check_names(settings)
    for key in ("points", "seeds", "tuning_seeds", "max_attempts", "log_every"):
        if settings[key] < 1:
            raise ValueError(f"{key} is {settings[key]}; it must be 1 or more")
    for key in ("steps", "step_hint", "batch_size", "eval_every", "checkpoint_every"):
        if settings[key] < 1:
            raise ValueError(f"{key} is {settings[key]}; give 1 or more, or 0 for the default")
    for key in ("loader_workers", "local.workers"):
        room, _, inner = key.partition(".")
        value = settings[room][inner] if inner else settings[room]
        if value < 0:
            raise ValueError(f"{key} is {value}; it must be 0 or more")
    if max(settings["seeds"], settings["tuning_seeds"]) > layout.SEEDS_PER_POINT:
        raise ValueError(f"more than {layout.SEEDS_PER_POINT} seeds have no directory each")
    if settings["checkpoint_every"] % settings["eval_every"]:
        raise ValueError(
            f"checkpoint_every ({settings['checkpoint_every']}) must be a multiple of eval_every "
            f"({settings['eval_every']}), so that no evaluation is lost or done twice"
        )
    for variant in settings["variants"]:
        has_temp = "temp" in variants_table.parse(variant)[1]
        variants_table.check(
            variant, {"tau": settings["tau"]} if has_temp else {}, settings["kernel"]
        )
    workloads_table.check_compute_dtype(settings["compute_dtype"])


def _check_names(settings: dict[str, Any]) -> None:
    name, variants = settings["name"], settings["variants"]
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"name={name!r}: a study needs a name that can be a directory's")
    if not variants or len(set(variants)) < len(variants):
        raise ValueError(f"variants={variants}: give each variant once, at least one")
    for key, allowed in (
        ("protocol", configs.PROTOCOLS),
        ("optimizer", configs.OPTIMIZERS),
        ("launcher", configs.LAUNCHERS),
    ):
        if settings[key] not in allowed:
            raise ValueError(variants_table.unknown(key, settings[key], allowed))
    if settings["baseline"] not in variants:
        raise ValueError(
            f"baseline {settings['baseline']!r} is not among the variants: {', '.join(variants)}"
        )


def is_paper_protocol(settings: dict[str, Any]) -> bool:
    """Whether a study is the paper's full ViT experiment, so that its table may stand beside."""
    return (
        settings["workload"] == "imagenet_vit"
        and settings["protocol"] == "tune_then_compare"
        and settings["space"] == "paper_nadamw"
        and settings["points"] >= 50
        and settings["seeds"] >= 5
        and settings["steps"] >= workloads_table.entry("imagenet_vit").step_hint
        and settings["batch_size"] == workloads_table.entry("imagenet_vit").batch_size
    )


def check_same(study: Study, record: dict[str, Any]) -> None:
    """Raises ValueError where the study on disk is another one, naming the keys that differ."""
    stored = record["config"]
    differing = [
        f"{key}: {stored.get(key)!r} there, {value!r} now"
        for key, value in study.settings.items()
        if key not in _MAY_CHANGE and key not in configs.LAUNCHERS and stored.get(key) != value
    ]
    if differing:
        raise ValueError(
            f"{study.directory} holds another study of that name ({'; '.join(differing)}). "
            "Choose another --config.name, or remove the directory"
        )


def from_record(record: dict[str, Any], directory: pathlib.Path) -> Study:
    """Returns the study that study.json in `directory` describes."""
    settings = {**record["config"], "experiment_dir": str(directory.parent)}
    return Study(settings, tuple(record["points"]))
