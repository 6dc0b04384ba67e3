"""The commands `python -m workloads list | prepare | check | bench | algoperf | maxtext …`."""

import argparse
import pathlib
import runpy
import signal
import sys
from typing import Any

if __name__ == "__main__":  # what is imported below may be somebody else's
    door = pathlib.Path(__file__).parents[1] / "attention" / "common" / "checkout.py"
    runpy.run_path(str(door))["start"]("workloads")

from attention.common import extras, files, messages
from attention.common.arguments import positive, whole
from workloads import catalog
from workloads.base.workload_spec import WorkloadSpec
from workloads.storage import preparation
from workloads.text import finetuning_specs

_EPILOG = """data of the full-size workloads (--data_dir says where it is written and read):
  prepare imagenet_vit --from=ARCHIVES            ILSVRC2012 archives, 150 GB; needs .[tfds]
  prepare c4_lm --from=TFDS_DIR                   TFDS c4/en as prepared, 800 GB; writes 312 GB
  prepare wikipedia_bert --from=DIR               TFDS wikipedia, or MLPerf's text files, 20 GB
  prepare fashion_vit --from=DIR                  the four IDX files, 31 MB; `make data-fashion`
                                                  gets them
  prepare read_speech_conformer --from=DIR        festvox-ru's folder, 240 MB; `make data-speech`
                                                  gets it
  prepare downstream --from=TREE                  benchmarks (docs/downstream.md); --data_dir is
                                                  that of the model; without --from: pydoc_lm's own

A SentencePiece model of yours is used if it lies in --data_dir as spm.model before preparing.
"""

# No workload: questions for language models, beside the data of one.
_DOWNSTREAM = "downstream"

_ALGOPERF = """Runs AlgoPerf's own submission_runner.py, unmodified, with an attention variant:

  python -m workloads algoperf --attention=laser -- \\
      --workload=imagenet_vit --framework=jax --data_dir=DATA/imagenet/jax \\
      --submission_path=algorithms/baselines/external_tuning/jax_nadamw_full_budget.py \\
      --tuning_search_space=SPACE.json --experiment_dir=/EXPERIMENTS --experiment_name=laser

What follows `--` are submission_runner.py's flags, as given. docs/algoperf.md has the rest.
"""

_TIMES = "write every round there, as a results file; `python -m analysis speedup` reads it"

_MAXTEXT = """Runs MaxText's own training, unmodified, with an attention variant:

  python -m workloads maxtext --attention=laser+qk_norm -- CONFIG.yml run_name=laser-0 \\
      metrics_file=RUNS/laser-0/metrics.jsonl init_weights_seed=0 steps=1000 \\
      eval_interval=100 eval_start_step=99 eval_steps=10

What follows `--` are MaxText's configuration file and key=value, as given. `python -m analysis
table RUNS` compares the runs. docs/maxtext.md has the rest.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns its exit status: 0, or 2 for bad input and broken data."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = " ".join(unknown)
        hint = ""
        if options.command == "algoperf":
            hint = f". Flags of submission_runner.py follow after `--`: ... -- {flags}"
        parser.error(f"unrecognized arguments: {flags}{hint}")
    try:
        with extras.explained("workloads"):
            options.run(options)
    except (ValueError, OSError) as error:
        print(f"python -m workloads: {messages.message(error)}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workloads",
        description="Workloads: models with data. Embedded ones need no download.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="names, sizes, targets")
    listing.add_argument("module", nargs="?", help="of your own, with a table WORKLOADS")
    listing.set_defaults(run=_list)
    for name, runner, text in (
        ("prepare", _prepare, "write a workload's data in the format its loader reads"),
        ("check", _check, "validate a data directory, in seconds"),
        ("bench", _bench, "loader throughput and train-step times, LASER / standard"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("name", metavar="WORKLOAD")
        command.add_argument("--data_dir", type=files.typed_path, help="default: see `list`")
        command.set_defaults(run=runner)
        if name == "prepare":
            command.add_argument(
                "--from",
                "--manual_dir",
                dest="manual_dir",
                type=files.typed_path,
                metavar="PATH",
                help="what was downloaded by hand: archives, TFDS text, Fashion-MNIST, festvox-ru",
            )
        if name == "check":
            command.add_argument("--full", action="store_true", help="read every record")
        if name == "bench":
            command.add_argument("--batch_size", type=whole(0, 1_048_576), default=0)
            command.add_argument("--variants", default="standard,laser")
            command.add_argument("--kernel", default="xla", help="of `attention list`")
            command.add_argument("--compute_dtype", default="float32", help="float32, bfloat16")
            command.add_argument("--times", type=files.typed_path, metavar="DIR", help=_TIMES)
    for name, runner, text, description, trainer in (
        ("algoperf", _algoperf, "AlgoPerf's submission_runner.py", _ALGOPERF, "its flags"),
        ("maxtext", _maxtext, "MaxText's training", _MAXTEXT, "its file and key=value"),
    ):
        command = commands.add_parser(
            name,
            help=f"{text} with an attention variant",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--attention", required=True, metavar="VARIANT", help="a variant")
        command.add_argument(
            "--tau", type=positive(1e-30, 1e30), help="the temperature of a +temp variant"
        )
        if name == "algoperf":
            command.add_argument(
                "--algoperf_dir",
                type=files.typed_path,
                help="AlgoPerf's checkout; default: the installed one",
            )
        command.add_argument("arguments", nargs="*", metavar="-- FLAGS", help=trainer)
        command.set_defaults(run=runner)
    return parser


def _list(options: argparse.Namespace) -> None:
    rows = catalog.of_module(options.module) if options.module else catalog.WORKLOADS
    for name, entry in rows.items():
        print(f"{name}: {entry.description}")
        print(
            f"    {entry.parameters:,} parameters, batch {entry.batch_size}, "
            f"{entry.step_hint:,} steps; {_targets(entry)}"
        )
        kind = "embedded" if entry.embedded else "to provide"
        if entry.stands_in_for:
            kind += f", stands in for {entry.stands_in_for}"
        print(f"    data ({kind}): {catalog.default_data_dir(name)}")
    print(
        "MODEL:SUITE: a decoder fine-tuned on questions, such as "
        f"{catalog.DECODERS[-1]}:pydoc_returns"
    )
    print(
        f"    MODEL of {', '.join(catalog.DECODERS)}; SUITE of {', '.join(finetuning_specs.SUITES)}"
    )


def _targets(entry: WorkloadSpec) -> str:
    if entry.validation_target is None:
        return f"metric {entry.metric}, no published target"
    test = "no" if entry.test_target is None else f"{entry.test_target:g}"
    return (
        f"targets: {entry.metric} {entry.validation_target:g} validation, "
        f"{test} test ({entry.target_source})"
    )


def _data(options: argparse.Namespace) -> tuple[Any, str]:
    """Returns what checks and prepares data, and where they lie: questions beside the data of a
    model, whose tokenizer they need."""
    if options.name != _DOWNSTREAM:
        module = catalog.data_module(options.name)
        return module, str(options.data_dir or catalog.default_data_dir(options.name))
    from workloads.downstream import conversion

    if not options.data_dir:
        example = catalog.default_data_dir("pydoc_lm")
        raise ValueError(
            "downstream: give --data_dir, the data directory of the model that is evaluated, such "
            f"as {example} for pydoc_lm"
        )
    return conversion, str(options.data_dir)


def _prepare(options: argparse.Namespace) -> None:
    from workloads.downstream import pydoc_questions

    module, directory = _data(options)
    if options.name == _DOWNSTREAM:
        if options.manual_dir:
            files.check_output_directory(pathlib.Path(directory), "--data_dir")
            print("\n".join(module.prepare(options.manual_dir, directory)))
        else:
            pydoc_questions.prepare(directory)
        print("\n".join(module.check(directory)))
        return
    if catalog.get(options.name).embedded:
        if options.manual_dir:
            raise ValueError(f"{options.name} is made from what is installed: no --from")
        module.prepare(directory)
    else:
        preparation.check_place(pathlib.Path(directory), "--data_dir")
        module.prepare(directory, options.manual_dir)
    if options.name == "pydoc_lm":
        pydoc_questions.prepare(directory)
    print(f"{options.name}: prepared in {directory}")


def _check(options: argparse.Namespace) -> None:
    module, directory = _data(options)
    print("\n".join(module.check(directory, full=options.full)))
    if catalog.module_of(options.name):
        from workloads import registry

        print(registry.check_model(options.name))


def _bench(options: argparse.Namespace) -> None:
    from workloads import bench

    if options.times:
        files.check_output_directory(options.times, "--times")
    directory = str(options.data_dir or catalog.default_data_dir(options.name))
    for line in bench.lines(
        options.name,
        directory,
        options.variants.split(","),
        options.batch_size,
        options.kernel,
        options.compute_dtype,
        options.times,
    ):
        print(line, flush=True)


def _algoperf(options: argparse.Namespace) -> None:
    from workloads.algoperf import runner

    runner.run(options.attention, options.tau, options.arguments, options.algoperf_dir)


def _maxtext(options: argparse.Namespace) -> None:
    from workloads.maxtext import runner

    runner.run(options.attention, options.tau, options.arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["list"]:
        # `... | head` ends it without a word. Others start processes, of which one that dies would
        # end them so, too.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
