"""Study configurations: where they are, and how a command line changes them.

A study is a file that defines `get_config()`, or `get_config(argument)` for a family of studies. It
starts from `base()`. Keys are locked: an unknown one is refused.
"""

import ast
import difflib
import functools
import os
import pathlib
import re
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
from absl import flags
from ml_collections import config_flags

from attention.common import files
from attention.table import canonical, unknown
from sweeps.launchers.config_keys import shown
from sweeps.records import layout
from sweeps.study import keys, selection
from workloads import catalog

SHIPPED = pathlib.Path(__file__).parents[1] / "studies"


class ShippedStudy(NamedTuple):
    """A study that comes with the package.

    path: its family's file. argument: what that file's `get_config` takes for it.
    """

    path: pathlib.Path
    argument: str
    docstring: str


@functools.cache
def shipped() -> dict[str, ShippedStudy]:
    """Returns the studies that come with the package by name, without running their files.

    A study is a function whose name begins with that of its family's file: FAMILY_ARGUMENT.
    """
    studies = {}
    for path in sorted(SHIPPED.glob("[!_]*.py")):
        prefix = f"{path.stem}_"
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith(prefix):
                studies[node.name] = ShippedStudy(
                    path, node.name.removeprefix(prefix), ast.get_docstring(node) or ""
                )
    return studies


def base() -> ml_collections.ConfigDict:
    """Returns every key with its default, locked."""
    config = ml_collections.ConfigDict()
    for name, key in keys.every().items():
        group, _, inner = name.rpartition(".")
        if group and group not in config:
            config[group] = ml_collections.ConfigDict()
        (config[group] if group else config)[inner] = key.default
    config.lock()
    return config


def parse(name: str, overrides: list[str]) -> ml_collections.ConfigDict:
    """Returns a study's config with `--config.key=value` applied.

    name: a shipped study, `FAMILY_ARGUMENT` or `FAMILY:ARGUMENT`, or a file, `FILE.py` or
    `FILE.py:ARGUMENT`, after which a study without a name is called. Raises ValueError for an
    unknown study or key, or a value of the wrong type.
    """
    path, argument = _file(name)
    config = _load(path, argument)
    config.name = config.name or "_".join(filter(None, (path.stem, argument)))
    _override(config, overrides)
    _drop_paper_table(config)
    return config


def _file(name: str) -> tuple[pathlib.Path, str | None]:
    """Returns a study's file and the argument that its `get_config` takes, None for none."""
    path = files.typed_path(name)
    if (file := re.fullmatch(r"(?s)(.*?\.py)(?::(.*))?", str(path))) and os.path.isfile(file[1]):
        return pathlib.Path(file[1]), file[2]
    studies, full_name = shipped(), name.replace(":", "_")
    if study := studies.get(full_name):
        return study.path, study.argument
    family = name.partition(":")[0]
    members = [study for study in studies if study.startswith(f"{family}_")] or studies
    raise ValueError(f"{unknown('study', full_name, members)} Or give a .py file")


def _override(config: ml_collections.ConfigDict, overrides: list[str]) -> list[str]:
    """Changes a config by `--config.key=value`; returns the keys.

    Raises ValueError for an unknown key, or a value of the wrong type.
    """
    known = keys.every()
    changed = []
    for override in overrides:
        key, is_change, value = override.removeprefix("--config.").partition("=")
        if not is_change or not override.startswith("--config."):
            raise ValueError(
                f"{override!r} is not understood; change the study by --config.KEY=VALUE"
            )
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(
                f"unknown config key {shown(key)}.{hint} `python -m sweeps keys` lists them all"
            )
        group, _, inner = key.rpartition(".")
        settings = config[group] if group else config
        # The library writes every key that it is given as YAML, twice: 50 ms for a whole study.
        setting = ml_collections.ConfigDict({inner: settings[inner]})
        arguments = ["sweeps", f"--config.{inner}={value}"]
        values = flags.FlagValues()
        try:
            config_flags.DEFINE_config_dict(
                "config", setting, flag_values=values, sys_argv=arguments
            )
            values(arguments)
            settings[inner] = setting[inner]
        except (LookupError, TypeError, ValueError, flags.Error) as error:
            raise ValueError(
                f"{key} is {shown(value)}; it must be {known[key].describe()}"
            ) from error
        changed.append(key)
    return changed


def changed(
    settings: dict[str, Any], overrides: list[str], changeable: Sequence[str]
) -> dict[str, Any]:
    """Returns what `--config.key=value` change of a stored study's settings, whole groups of keys.

    changeable: the keys, and groups of keys, that may be given. Raises ValueError for another one,
    or a value of the wrong type.
    """
    config = base()
    config.update(settings)
    changes = {key.split(".")[0]: key for key in _override(config, overrides)}
    if fixed := [key for group, key in changes.items() if group not in changeable]:
        raise ValueError(
            f"{fixed[0]} is what the study was trained with, and stays; what may be given here: "
            f"{', '.join(changeable)}"
        )
    new = config.to_dict()
    keys.check(new)
    return {group: new[group] for group in changes}


def _load(path: pathlib.Path, argument: str | None) -> ml_collections.ConfigDict:
    """Returns what a file's get_config makes, with the keys and types of `base`.

    Raises ValueError, with the line, for whatever goes wrong in a file that a person wrote.
    """
    arguments = () if argument is None else (argument,)
    try:
        make = runpy.run_path(str(path)).get("get_config")
        config = make(*arguments) if callable(make) else None
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        if isinstance(error, SyntaxError):
            lines = [error.lineno]
        where = f", line {lines[-1]}" if lines else ""
        raise ValueError(f"{path}{where}: {type(error).__name__}: {error}") from error
    names = flat(config.to_dict()) if isinstance(config, ml_collections.ConfigDict) else {}
    if differing := set(names) ^ set(keys.every()):
        which = f"; {', '.join(sorted(differing))} differ" if names else ""
        raise ValueError(
            f"{path}: a study defines get_config(), and that returns "
            f"sweeps.study.config.base(), locked, with the changes it makes{which}"
        )
    return config


def normalised(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a study's settings with variants by their canonical names, and with the workload's
    own numbers for 0. Raises ValueError for an unknown variant or workload."""
    # --config.variants=standard,laser arrives as one string.
    names = [name for part in settings["variants"] for name in part.split(",") if name.strip()]
    entry = catalog.get(settings["workload"])
    steps = settings["steps"] or entry.step_hint
    return {
        **settings,
        "variants": [canonical(name) for name in names],
        "looks": list(settings["looks"]),
        "baseline": canonical(settings["baseline"]),
        "tuning_variant": canonical(settings["tuning_variant"]),
        "steps": steps,
        "step_hint": settings["step_hint"] or steps,
        "batch_size": settings["batch_size"] or entry.batch_size,
        "eval_every": settings["eval_every"] or max(1, steps // 10),
    }


def _drop_paper_table(config: ml_collections.ConfigDict) -> None:
    """Takes the paper's table from a study whose protocol is none of the shipped studies' with that
    table, by whatever way it was changed. A study whose point was selected by a changed study is
    changed, too."""
    if not config.paper_table:
        return
    ours = _protocol(config)
    differences = (
        [key for key, value in protocol.items() if ours[key] != value]
        for protocol in _shipped_protocols(config.paper_table)
    )
    reasons = min(differences, key=len, default=[])
    if config.space.startswith(selection.SELECTED):
        name = config.space.removeprefix(selection.SELECTED)
        tuning = layout.read_json_if_there(
            pathlib.Path(config.experiment_dir).expanduser() / name / layout.STUDY
        )
        if isinstance(tuning, dict) and not tuning.get("paper_table"):
            reasons.append(f"the point of study {name}")
    if reasons:
        warn(
            "no table of the paper stands beside this study's: it differs from the paper's "
            f"protocol in {', '.join(reasons)}"
        )
        config.paper_table = ""


@functools.cache
def _shipped_protocols(paper_table: str) -> list[dict[str, Any]]:
    configs = [_load(study.path, study.argument) for study in shipped().values()]
    return [_protocol(config) for config in configs if config.paper_table == paper_table]


def _protocol(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Returns the settings that the paper's table depends on."""
    roles = keys.roles()
    return {
        key: value
        for key, value in flat(normalised(config.to_dict())).items()
        if roles[key.split(".")[0]].is_protocol
    }


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored config, with defaults for keys that it lacks, without empty removed keys."""
    config = {**base().to_dict(), "looks": []}  # JSON has no tuples
    for key, value in stored.items():
        if key in keys.REMOVED and not value:
            continue
        is_group = isinstance(value, dict) and isinstance(config.get(key), dict)
        config[key] = {**config[key], **value} if is_group else value
    return config


def of_this_version(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored config as `completed` does, for trials that are to be trained.

    Raises ValueError if it has a key that this version does not know.
    """
    config = completed(stored)
    if added := sorted(flat(config).keys() - keys.every().keys()):
        raise ValueError(
            f"study {stored.get('name')} has settings that this version does not know: "
            f"{', '.join(added)}. {keys.OTHER_VERSION}"
        )
    return config


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {"local.workers": 2, ...} of {"local": {"workers": 2}, ...}."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            settings |= {f"{key}.{inner}": deep for inner, deep in flat(value).items()}
        else:
            settings[key] = value
    return settings


def warn(message: str) -> None:
    """Prints a warning that the user should see once."""
    print(f"warning: {message}", file=sys.stderr, flush=True)
