"""What a study's settings must be."""

import dataclasses
from typing import Any

from attention import backends
from attention import table as variants_table
from sweeps.launchers import table as launchers
from sweeps.launchers.config_keys import shown
from sweeps.records import layout, stages
from sweeps.study import config as configs
from sweeps.study import keys, selection
from sweeps.study.trial import EXTRA_PATHS
from workloads import algoperf_specs, catalog
from workloads.base.options import Options, mesh_of
from workloads.downstream import suites


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for the first setting that cannot be used."""
    _check_names(settings)
    _check_size(settings)
    if settings["checkpoint_every"] % settings["eval_every"]:
        raise ValueError(
            f"checkpoint_every ({settings['checkpoint_every']}) must be a multiple of eval_every "
            f"({settings['eval_every']}), so that no evaluation is lost or done twice"
        )
    _check_hyperparameters(settings)
    for variant in {*settings["variants"], settings["tuning_variant"]}:
        variants_table.check(
            variant, variant_hyperparameters(variant, settings), settings["kernel"]
        )
        backends.check_precision(settings["kernel"], settings["matmul_precision"])
    if settings["document_mask"]:
        backends.check_needs(settings["kernel"], ("segments",))
    catalog.check(
        settings["workload"],
        options(settings),
        variants=(*settings["variants"], settings["tuning_variant"]),
        kernel=settings["kernel"],
        batch_size=settings["batch_size"],
        microbatches=settings["microbatches"],
        observed=bool(settings["diagnostics"]),
    )
    launchers.launcher_class(settings["launcher"]).check(settings)
    _check_extra_paths(settings)
    if settings["diagnostics"] and settings["diagnostics_examples"] > settings["batch_size"]:
        raise ValueError(
            f"diagnostics_examples is {settings['diagnostics_examples']} and a batch has "
            f"{settings['batch_size']} examples, of which they are the first; set "
            f"--config.diagnostics_examples={settings['batch_size']} or fewer"
        )
    if settings["profile"]:
        first, last = map(int, settings["profile"].split(":"))
        if not first < last <= settings["steps"]:
            raise ValueError(
                f"profile={shown(settings['profile'])}: it traces the updates from the first "
                "number to before the second, so the first must be smaller, and a trial has "
                f"{settings['steps']} updates; give --config.profile=100:110, for instance"
            )
    if settings["downstream"]:
        check_downstream(settings, settings["downstream"])


def check_downstream(settings: dict[str, Any], suite: str) -> None:
    """Raises ValueError if there is no such suite, or it cannot be put to such a model, or by
    such jobs."""
    suites.get(suite)
    catalog.check_decoder(settings["workload"])
    launcher = settings["launcher"]
    for key in ("hosts", "nodes"):
        if (count := settings[launcher].get(key, 1)) > 1:
            raise ValueError(
                f"{launcher}.{key} is {count}, and a suite is put to a model by one process, on "
                "all devices of its host. Train without config.downstream, then: python -m sweeps "
                f"evaluate STUDY_DIR --suite={suite} --config.{launcher}.{key}=1"
            )


def _check_extra_paths(settings: dict[str, Any]) -> None:
    """Raises ValueError if a setting of AlgoPerf's workloads does not apply."""
    name = settings["workload"]
    needs = catalog.get(name).extra_paths
    for key in EXTRA_PATHS:
        if settings[key] and key not in needs:
            raise ValueError(f"{key} is for AlgoPerf's own workloads, and {name} has no use for it")
    workers = settings["loader_workers"]
    if workers and name.startswith(algoperf_specs.PREFIX):
        raise ValueError(
            f"{name}: loader_workers={workers}, but AlgoPerf's pipelines choose their own threads "
            "and processes; set loader_workers=0"
        )


def check_tokenizer(settings: dict[str, Any]) -> None:
    """Raises selection.NotYetError if a tokenizer is needed and none is given."""
    name, tokenizer = settings["workload"], algoperf_specs.TOKENIZER
    if tokenizer in catalog.get(name).extra_paths and not settings[tokenizer]:
        raise selection.NotYetError(algoperf_specs.no_tokenizer(name))


def options(settings: dict[str, Any]) -> Options:
    """Returns how the study's models are computed. Raises ValueError for what does not exist."""
    names = {field.name for field in dataclasses.fields(Options)} - {"mesh"}
    values = {key: settings[key] for key in names}
    return Options(**values, mesh=mesh_of(settings["mesh"]))


def variant_hyperparameters(variant: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what `attention.registry.get` takes for a variant in this study."""
    return variants_table.hyperparameters(
        variant, settings["tau"], settings["diff_head_norm"], settings["attention"]
    )


def _check_hyperparameters(settings: dict[str, Any]) -> None:
    """Raises ValueError for a mechanism's hyperparameter that no variant has."""
    variants = (*settings["variants"], settings["tuning_variant"])
    taken = {name for variant in variants for name in variants_table.hyperparameters_of(variant)}
    names = {f"attention.{name}": name for name in settings["attention"]}
    values = configs.flat(settings)
    for key, name in {**names, "tau": "tau", "diff_head_norm": "head_norm"}.items():
        if name not in taken and values[key] != keys.OWN[key].default:
            raise ValueError(
                f"{key}={values[key]!r} changes no variant of this study "
                f"({keys.OWN[key].meaning}); set --config.{key}={keys.OWN[key].default!r}"
            )


def _check_names(settings: dict[str, Any]) -> None:
    variants = settings["variants"]
    for key in ("name", "experiment_dir"):
        if not settings[key]:
            raise ValueError(f"{key} is empty; a study needs one: --config.{key}=...")
    if not variants or len(set(variants)) < len(variants) or len(variants) > keys.MOST_VARIANTS:
        raise ValueError(
            f"variants={shown(variants)}: give each variant once, 1 to {keys.MOST_VARIANTS} of them"
        )
    if settings["baseline"] not in variants:
        raise ValueError(
            f"baseline {settings['baseline']!r} is not among the variants: {', '.join(variants)}"
        )


def _check_size(settings: dict[str, Any]) -> None:
    """Raises ValueError for more trials or seeds than a study may have; makes no trial."""
    names = stages.names(settings)
    groups = [group for stage in names for group in stages.groups(settings, stage)]
    last = max(group.seeds[-1] for group in groups)
    if last >= layout.SEEDS_PER_POINT:
        raise ValueError(
            f"first_seed {settings['first_seed']} and its number of seeds end at seed {last:,}; "
            f"{layout.SEEDS_PER_POINT - 1} is the last one. Lower first_seed, seeds or tuning_seeds"
        )
    if (looks := settings["looks"]) and not (
        sorted({*looks}) == looks and settings["seeds"] in looks
    ):
        raise ValueError(
            f"looks={shown(looks)} and seeds={settings['seeds']}: looks must ascend and seeds be "
            f"one of them; give --config.seeds={min(looks)} first, later the next one"
        )
    trials = sum(group.trials for group in groups)
    if trials > keys.MOST_TRIALS:
        raise ValueError(
            f"{trials:,} trials: {len(settings['variants'])} variants, {settings['points']:,} "
            f"points, {settings['seeds']:,} seeds, {settings['tuning_seeds']:,} tuning_seeds; a "
            f"study may have {keys.MOST_TRIALS:,}. Lower one of them, or make several studies"
        )
