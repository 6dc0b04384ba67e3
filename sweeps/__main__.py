"""The package's commands: `python -m sweeps studies | plan | run | status | resume | ...`."""

import argparse
import pathlib
import runpy
import signal
import sys
from collections.abc import Callable

if __name__ == "__main__":  # what is imported below may be somebody else's
    door = pathlib.Path(__file__).parents[1] / "attention" / "common" / "checkout.py"
    runpy.run_path(str(door))["start"]("sweeps")

from attention.common import extras, files, messages
from attention.common.arguments import positive, whole
from sweeps.launchers.protocol import EngineError

_EPILOG = """examples:
  python -m sweeps studies
  python -m sweeps keys slurm
  python -m sweeps plan --config=digits_vit_demo
  python -m sweeps compile --config=c4_lm_paper --topology=v5e:8x8
  python -m sweeps hardware
  python -m sweeps run --config=digits_vit_demo --config.seeds=5 --config.name=five_seeds
  python -m sweeps status experiments/five_seeds
  python -m sweeps status --watch experiments/five_seeds
  python -m sweeps resume experiments/five_seeds
  python -m sweeps cancel experiments/five_seeds
  python -m sweeps resubmit experiments/five_seeds 4711_3
  python -m sweeps evaluate experiments/pydoc_lm_demo --suite=pydoc
  python -m sweeps export --format=algoperf experiments/imagenet_vit_paper
  python -m sweeps run --config=digits_vit_demo --config.launcher=slurm --config.slurm.gpus=1
  python -m sweeps run --config=pydoc_lm_demo --config.variants=standard,laser,diff,diff_laser
then: python -m analysis table experiments/five_seeds

--config takes a shipped study's name or a .py file; --config.KEY=VALUE changes one key of it.
--config.space takes a shipped space, a .json file, or selected:STUDY, the point that another study
in the same experiment_dir selected.
"""


_KEYS = (
    "--config.KEY=VALUE changes a key of the study; `python -m sweeps keys` lists them with "
    "default, meaning and allowed values, `python -m sweeps keys slurm` those of a launcher."
)
# Commands that take --config.KEY=VALUE.
_CHANGING = ("plan", "compile", "run", "evaluate")
# Adds a command: its name, help and description.
_Add = Callable[..., argparse.ArgumentParser]


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Returns 0; 1 where a trial has not finished; 2 for bad input; 3 from `status` where a study is
    not complete; 130 if interrupted.
    """
    options, rest = _parser().parse_known_args(arguments)
    try:
        for argument in rest:
            if options.command not in _CHANGING or not argument.startswith("--config."):
                raise ValueError(
                    f"{options.command} takes no {argument!r}; see python -m sweeps "
                    f"{options.command} --help"
                )
        options.overrides = rest
        with extras.explained("sweeps"):
            if options.command == "job":
                from sweeps.records import submissions

                # First: what follows loads libraries that the node may lack.
                if options.slot is None:
                    submissions.note_start(options.file, options.index)
                from sweeps.job import job

                return job.run(options.file, options.index, options.slot, options.cpus)
            from sweeps import commands

            return commands.COMMANDS[options.command](options) or 0
    except (ValueError, OSError, EngineError) as error:
        print(f"python -m sweeps: {messages.message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"python -m sweeps: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps",
        description="Plan and run studies: workload × attention variants × points × seeds.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, description: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=description or None,
            epilog=_KEYS if name in _CHANGING else None,
            allow_abbrev=name not in _CHANGING,
        )

    _add_runs(add)
    _add_compilers(add)
    _add_results(add)
    job = add(
        "job",
        "run a job of a study on the node an engine chose",
        "What launchers start, on this host and on engines' nodes. Exits with 0 where nothing is "
        "left to do, 75 where it was told to stop and has saved, 76 where this node cannot run it.",
    )
    job.add_argument("file", type=pathlib.Path, metavar="STUDY_DIR/jobs/BATCH.json")
    job.add_argument("--index", type=int, required=True, help="which job, from 0")
    job.add_argument("--slot", type=int, help="which process of the job's node, from 0")
    job.add_argument("--cpus", type=_numbers, default=(), help="cores to stay on: 0,1,2")
    return parser


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", required=True, metavar="STUDY", help="name or .py file")


def _add_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", type=files.typed_path, metavar="STUDY_DIR")


def _add_stage(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stage", help="tune, compare ... (default: the last one that has begun)")


def _add_compilers(add: _Add) -> None:
    compiled = add(
        "compile",
        "memory and time of its train step, by an accelerator's compiler",
        "Compiles the train step of every variant for devices that need not be here. Exit status 1 "
        "where one does not fit into their memory.",
    )
    _add_study(compiled)
    compiled.add_argument(
        "--topology",
        required=True,
        help="v5e:8x8, v5e:8x8*2 (two slices), v4:2x2x2, v5p:2x2x4, h100:1x1x8 ...",
    )
    compiled.add_argument(
        "--kernels", default="", help="compare these kernels, such as xla,splash; default: its own"
    )
    compiled.add_argument("--json", action="store_true", help="one object, with every figure")
    hardware = add(
        "hardware",
        "what this host's devices really do: ten minutes, one file",
        "Checks kernels, train steps and two processes on the devices that are here, and writes "
        "every result to one file. Exit status 1 where one is bad.",
    )
    hardware.add_argument("--parts", default="", help="some of kernels,steps,processes")
    hardware.add_argument(
        "--out",
        type=files.typed_path,
        default=pathlib.Path("hardware.json"),
        help="default: hardware.json",
    )


def _add_runs(add: _Add) -> None:
    add("studies", "studies that come with the package")
    keys = add("keys", "what --config.KEY=VALUE may change in a study")
    keys.add_argument("word", nargs="?", default="", help="only keys with it in their name")
    plan = add("plan", "trials, steps, device-hours and disk, before anything starts")
    plan.add_argument(
        "--step_seconds", type=positive(), help="time per step, measured or by compile"
    )
    _add_study(plan)
    run = add("run", "run a study, or continue it; may be interrupted and repeated")
    _add_study(run)
    run.add_argument(
        "--brief", action="store_true", help="no line for a trial that begins, or ends as it should"
    )
    status = add(
        "status",
        "what is pending, running, done, diverged and failed",
        "Exit status 0 where every trial of the study has ended, 3 where one has not, 2 for "
        "errors. Engines that have jobs are asked why these wait, but not by --watch.",
    )
    form = status.add_mutually_exclusive_group()
    form.add_argument("--watch", action="store_true", help="until the study is done")
    form.add_argument("--json", action="store_true", help="one object")
    _add_directory(status)
    _add_directory(add("resume", "continue a study from its directory alone"))
    _add_directory(add("cancel", "save and stop every trial of a study, wherever it runs"))
    resubmit = add(
        "resubmit",
        "withdraw queued jobs from their engine and submit their trials again",
        "For jobs that an engine will never start; `status` names them. The driver that runs "
        "submits the trials again, or the next `resume`. No trial is trained twice.",
    )
    _add_directory(resubmit)
    resubmit.add_argument("jobs", metavar="JOB", nargs="+", help="as `status` names it")


def _add_results(add: _Add) -> None:
    from workloads.downstream import suites

    evaluate = add(
        "evaluate",
        "what a study's trained models can do, by a suite",
        "Puts every trial that is done before a suite's questions and writes "
        "TRIAL/downstream/STEP/SUITE/results.json and samples.jsonl.gz. May be interrupted and "
        "repeated: finished tasks are not computed again. --config.launcher=... and its keys, "
        "max_attempts and mesh.* may be others than those of training. Exit status 1 where "
        "a checkpoint could not be evaluated.",
    )
    _add_directory(evaluate)
    evaluate.add_argument("--suite", required=True, help=f"of {', '.join(suites.names())}")
    evaluate.add_argument(
        "--checkpoints",
        type=whole(1, 10_000),
        default=1,
        help="of each trial, the last ones (default: 1); config.keep_checkpoints has them kept",
    )
    evaluate.add_argument(
        "--data_dir",
        type=files.typed_path,
        help="where downstream/ and the tokenizer lie (default: the study's data)",
    )
    _add_stage(evaluate)
    export = add(
        "export",
        "write a study as AlgoPerf's scoring reads it",
        "Writes DIR/<variant>/study_<seed>/<workload>_jax/trial_<point> from a stage of each "
        "study, whole or not at all. DIR must not exist.",
    )
    export.add_argument("directories", type=files.typed_path, metavar="STUDY_DIR", nargs="+")
    export.add_argument("--format", required=True, choices=("algoperf",))
    export.add_argument(
        "--out",
        type=files.typed_path,
        metavar="DIR",
        help="default: export/algoperf_STAGE in the first STUDY_DIR",
    )
    _add_stage(export)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


if __name__ == "__main__":
    if sys.argv[1:2] != ["job"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # Ends it as Ctrl-C does: with the processes that it started, and their semaphores.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.argv[1:2] in (["studies"], ["keys"], ["status"]):
        # `... | head` ends these without a word. The others start processes, of which one that dies
        # would end them so, too; and a run outlives its reader.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
