"""The commands `python -m workloads algoperf` and `algoperf_data`."""

import argparse

from workloads.arguments import positive

_RUN = """Runs AlgoPerf's own submission_runner.py, unmodified, with an attention variant:

  python -m workloads algoperf --attention=laser -- \\
      --workload=imagenet_vit --framework=jax --data_dir=DATA/imagenet/jax \\
      --submission_path=algorithms/baselines/external_tuning/jax_nadamw_full_budget.py \\
      --tuning_search_space=SPACE.json --experiment_dir=/EXPERIMENTS --experiment_name=laser

What follows `--` are submission_runner.py's flags, as given. docs/algoperf.md has the rest.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds both to the parser of `python -m workloads`."""
    run = commands.add_parser(
        "algoperf",
        help="AlgoPerf's submission_runner.py with an attention variant",
        description=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--attention", required=True, metavar="VARIANT", help="`attention list`")
    run.add_argument("--tau", type=positive(1e-30, 1e30), help="the temperature of a +temp variant")
    run.add_argument("--algoperf_dir", help="AlgoPerf's checkout; default: the installed one")
    run.add_argument(
        "--tiny", action="store_true", help="evaluate the few examples of `algoperf_data`"
    )
    run.add_argument("arguments", nargs="*", metavar="-- FLAGS", help="submission_runner.py's")
    run.set_defaults(run=_run)
    data = commands.add_parser(
        "algoperf_data", help="fabricated data, a few examples, to try AlgoPerf's workloads"
    )
    data.add_argument("directory", metavar="DIR")
    data.add_argument(
        "--workload",
        required=True,
        help="imagenet_vit, librispeech_conformer, wmt or finewebedu_lm",
    )
    data.set_defaults(run=_data)


def hint(options: argparse.Namespace, unknown: list[str]) -> str:
    """Returns what to do about arguments that `algoperf` does not know, '' for other commands."""
    if options.command != "algoperf":
        return ""
    return (
        f". Flags of AlgoPerf's submission_runner.py follow after `--`: ... -- {' '.join(unknown)}"
    )


def _run(options: argparse.Namespace) -> int:
    from workloads.algoperf import installation, preflight, runner

    arguments = tuple(options.arguments)
    request = preflight.Request(options.attention, options.tau, options.tiny, arguments)
    try:
        runner.run(request, options.algoperf_dir)
    except installation.AlgoPerfMissingError as error:
        raise ValueError(str(error)) from error
    return 0


def _data(options: argparse.Namespace) -> int:
    from workloads.algoperf import tiny_data, tiny_sizes

    path = tiny_data.prepare(options.directory, options.workload)
    sizes = tiny_sizes.read_sizes(path, options.workload)
    print(f"{path}: fabricated data for {options.workload}, {sizes} examples")
    return 0
