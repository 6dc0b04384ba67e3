"""A study: a checked configuration, its points, its stages, and the trials they consist of."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import ml_collections

from sweeps.launchers import remote
from sweeps.records import layout, stages
from sweeps.study import checks, hyperparameters, keys, selection, space, start
from sweeps.study import config as configs
from sweeps.study.start import Start
from sweeps.study.trial import EXTRA_PATHS, SETTINGS, Trial
from workloads import algoperf_specs, catalog

Input = TypeVar("Input")


@dataclasses.dataclass(frozen=True)
class Study:
    """A checked study. `settings` is the resolved config as plain data; points are completed.

    starts: of each variant and seed the checkpoint that trials start from; () for none.
    data_digest: SHA-256 of the data that its new trials are trained on, '' where it is unknown.
    """

    settings: dict[str, Any]
    points: tuple[dict[str, float], ...]
    starts: tuple[Start, ...] = ()
    data_digest: str = ""

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
        return {name: self.settings[name] for name in EXTRA_PATHS}

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return stages.names(self.settings)

    def trials(self, stage: str, selection: dict[str, Any] | None = None) -> list[Trial]:
        """Returns a stage's trials; 'compare' needs the selection made after 'tune', and has those
        of the variants with a point in it."""
        selected = selection["points"] if stage == "compare" and selection else {}
        if stage == "compare" and not selected:
            raise ValueError("stage 'compare' needs the points that stage 'tune' selects")
        starts = {(start.variant, start.seed): start for start in self.starts}
        return [
            self._trial(
                stage,
                group.variant,
                selected[group.variant] if selected else point,
                seed,
                starts.get((group.variant, seed)),
            )
            for group in stages.groups(self.settings, stage)
            if not selected or group.variant in selected
            for point in range(group.points)
            for seed in group.seeds
        ]

    def _trial(self, stage: str, variant: str, point: int, seed: int, start: Start | None) -> Trial:
        settings, entry = self.settings, catalog.get(self.workload)
        values = {name: settings[name] for name in SETTINGS}
        values["mesh"] = checks.options(settings).mesh
        return Trial(
            study=self.name,
            stage=stage,
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
            start=start.content if start else "",
            start_from=start.checkpoint if start else "",
            data_digest=self.data_digest,
            workload_digest=catalog.row_digest(self.workload),
            **values,
        )


def resolve(config: ml_collections.ConfigDict, planning: bool = False) -> Study:
    """Returns the study a config describes, with defaults filled in and everything checked.

    planning: whether a point that another study has yet to select is assumed, for costs, which do
    not depend on it. Raises ValueError by name for anything that could not run.
    """
    settings = config.to_dict()
    keys.check(settings)
    settings = configs.normalised(settings)
    entry = catalog.get(settings["workload"])
    directory = algoperf_specs.DIRECTORY
    if directory in entry.extra_paths and not settings[directory]:
        # Jobs need not have the driver's environment.
        settings[directory] = os.environ.get(algoperf_specs.DIRECTORY_VARIABLE, "")
    is_path = "/" in settings["finetune_from"]  # else the name of a study of experiment_dir
    settings |= keys.typed_paths(settings)
    for key in ("data_dir", *EXTRA_PATHS):
        if settings[key]:  # jobs start in other folders
            settings[key] = str(pathlib.Path(settings[key]).absolute())
    if settings["finetune_from"]:
        beside = "" if is_path else settings["experiment_dir"]
        settings["finetune_from"] = str(pathlib.Path(beside, settings["finetune_from"]).absolute())
    settings["checkpoint_every"] = settings["checkpoint_every"] or settings["eval_every"]
    checks.check(settings)
    settings["data_dir"] = settings["data_dir"] or _default_data_dir(settings)
    _find_or_assume(lambda: checks.check_tokenizer(settings), None, planning)
    # An ε that nobody gave is nothing to warn of.
    assumed = [{**point, "epsilon": 1e-8} for point in space.points(space.load("paper_adamw"), 1)]
    raw = _find_or_assume(lambda: _points(settings), assumed, planning)
    if len(raw) < settings["points"]:
        configs.warn(
            f"space {settings['space']!r} is a list of {len(raw)} points; "
            f"{settings['points']} were asked, {len(raw)} will run"
        )
        settings["points"] = len(raw)
    starts: tuple[Start, ...] = _find_or_assume(lambda: _starts(settings), (), planning)
    points = _completed(raw, settings)
    _warn_of_no_effect(settings, points)
    return Study(settings, tuple(points), starts)


def _find_or_assume(find: Callable[[], Input], assumed: Input, planning: bool) -> Input:
    """Returns find(). While planning, a missing input gives a warning and `assumed`."""
    try:
        return find()
    except selection.NotYetError as error:
        if not planning:
            raise
        configs.warn(f"planned as if it were there; {error}")
        return assumed


def _default_data_dir(settings: dict[str, Any]) -> str:
    """Returns the default data directory. study.json keeps it, so that jobs use the same.

    The folder is ATTNPERF_DATA of the launcher's own variables, else of this process, else this
    user's cache folder. '' if only a node of such a launcher knows it: the node fills in a
    variable's `$NAME`, and makes embedded data in its own cache folder without ATTNPERF_DATA.
    """
    name, launcher = settings["workload"], settings[settings["launcher"]]
    environment = {**os.environ, **remote.variables(launcher.get("environment", ""))}
    folder = environment.get(catalog.DATA_VARIABLE, "")
    is_of_node = "$" in folder or (not folder and catalog.get(name).embedded)
    if "environment" in launcher and is_of_node:
        return ""
    return str(catalog.default_data_dir(name, environment).absolute())


def _starts(settings: dict[str, Any]) -> tuple[Start, ...]:
    if not settings["finetune_from"]:
        return ()
    pairs = dict.fromkeys(
        (group.variant, seed)
        for stage in reversed(stages.names(settings))
        for group in stages.groups(settings, stage)
        for seed in group.seeds
    )
    return start.find(settings, pairs)


def _points(settings: dict[str, Any]) -> list[space.Point]:
    name, folder = settings["space"], settings["experiment_dir"]
    if not name.startswith(selection.SELECTED):
        return space.points(space.load(name), settings["points"])
    return [selection.selected_point(name, folder, list(configs.shipped()))]


def _completed(raw: list[space.Point], settings: dict[str, Any]) -> list[dict[str, float]]:
    completed = []
    for number, point in enumerate(raw):
        try:
            completed.append(hyperparameters.complete(point))
        except ValueError as error:
            raise ValueError(f"point {number} of space {settings['space']!r}: {error}") from error
    least, limit = min(point["epsilon"] for point in completed), hyperparameters.UNDERFLOW
    if least < limit:
        configs.warn(
            f"space {settings['space']!r}: epsilon={least:g}: gradients below {limit:.0e} square "
            f"to 0, and their updates reach {limit / least:.0e} times the learning rate (usual: 1)"
        )
    return completed


def _warn_of_no_effect(settings: dict[str, Any], points: list[dict[str, float]]) -> None:
    """Warns of hyperparameters and windows that change nothing that this workload computes."""
    entry = catalog.get(settings["workload"])
    for name in entry.support.ignores:
        if any(point[name] for point in points):
            configs.warn(f"{entry.name} has no {name}; its values change nothing")
    widths = [
        checks.variant_hyperparameters(v, settings).get("width", 0) for v in settings["variants"]
    ]
    if 0 < entry.positions <= max(widths):
        configs.warn(
            f"+window of width {max(widths)} hides nothing of the {entry.positions} positions of "
            f"{entry.name}; set --config.attention.width"
        )


def from_record(record: dict[str, Any], directory: pathlib.Path) -> Study:
    """Returns the study that study.json in `directory` describes.

    Raises ValueError if a setting cannot be, or the folder has another name.
    """
    directory = directory.resolve()
    settings = configs.of_this_version(record["config"])
    settings["experiment_dir"] = str(directory.parent)
    if directory.name != settings["name"]:
        raise ValueError(
            f"{directory} holds study {settings['name']!r}; give the folder that name again"
        )
    if catalog.module_of(str(settings["workload"])):
        catalog.get(settings["workload"])
    try:
        keys.check(settings)
        checks.check(settings)
        for point in record["points"]:
            hyperparameters.complete(point)
        if len(record["points"]) != settings["points"]:
            raise ValueError(f"config.points is {settings['points']}, and another number is listed")
        starts = tuple(Start(**row) for row in record.get("starts", ()))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory / layout.STUDY} is damaged: {error}") from error
    return Study(settings, tuple(record["points"]), starts)
