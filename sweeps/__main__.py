"""The package's commands: `python -m sweeps studies | plan | run | status | resume | ...`."""

import argparse
import pathlib
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if __name__ == "__main__":  # what is imported below may be somebody else's
    door = pathlib.Path(__file__).parents[1] / "attention" / "checkout.py"
    runpy.run_path(str(door))["start"]("sweeps")

from attention import files
from sweeps.launchers.protocol import EngineError
from workloads.base import errors

if TYPE_CHECKING:
    from sweeps.study.study import Study

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
  python -m sweeps evaluate experiments/pydoc_lm_demo --suite=pydoc
  python -m sweeps tensors experiments/five_seeds/compare/laser/digits_vit_jax/trial_1
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


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Returns 0; 1 where a trial has not finished; 2 for bad input; 130 if interrupted.
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
        return options.run(options) or 0
    except (ValueError, OSError, EngineError) as error:
        print(f"python -m sweeps: {errors.message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"python -m sweeps: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from workloads.arguments import positive, whole
    from workloads.downstream import suites

    parser = argparse.ArgumentParser(
        prog="python -m sweeps",
        description="Plan and run studies: workload × attention variants × points × seeds.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int | None], text: str, description: str = ""
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=description or None,
            epilog=_KEYS if name in _CHANGING else None,
            allow_abbrev=name not in _CHANGING,
        )
        command.set_defaults(run=run)
        return command

    add("studies", _studies, "studies that come with the package")
    keys = add("keys", _keys, "what --config.KEY=VALUE may change in a study")
    keys.add_argument("word", nargs="?", default="", help="only keys with it in their name")
    plan = add("plan", _plan, "trials, steps, device-hours and disk, before anything starts")
    plan.add_argument("--step_seconds", type=positive(), help="measured time per step")
    plan.add_argument("--topology", default="", help="for which, such as v5e:8x8 or h100:1x1x8")
    run = add("run", _run, "run a study, or continue it; may be interrupted and repeated")
    for command in (plan, run):
        command.add_argument(
            "--config",
            required=True,
            metavar="STUDY[,STUDY...]",
            help="name or .py file; several, one after the other, with commas between them",
        )
    compiled = add(
        "compile",
        _compile,
        "memory and time of its train step, by an accelerator's compiler",
        "Compiles the train step of every variant for devices that need not be here. Exit status 1 "
        "where one does not fit into their memory.",
    )
    compiled.add_argument("--config", required=True, metavar="STUDY", help="name or .py file")
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
        _hardware,
        "what this host's devices really do: ten minutes, one file",
        "Checks kernels, train steps and two processes on the devices that are here, and writes "
        "every result to one file. Exit status 1 where one is bad.",
    )
    hardware.add_argument("--parts", default="", help="some of kernels,steps,processes")
    status = add("status", _status, "what is pending, running, done, diverged and failed")
    status.add_argument("--watch", action="store_true", help="until the study is done")
    resume = add("resume", _resume, "continue a study from its directory alone")
    cancel = add("cancel", _cancel, "save and stop every trial of a study, wherever it runs")
    evaluate = add(
        "evaluate",
        _evaluate,
        "what a study's trained models can do, by a suite",
        "Puts every trial that is done before a suite's questions and writes "
        "TRIAL/downstream/STEP/SUITE/results.json and samples.jsonl.gz. May be interrupted and "
        "repeated: finished tasks are not computed again. --config.launcher=... and its keys, "
        "max_attempts and mesh.* may be others than those of training. Exit status 1 where "
        "a checkpoint could not be evaluated.",
    )
    for command in (status, resume, cancel, evaluate):
        command.add_argument("directory", type=files.typed_path, metavar="STUDY_DIR")
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
    for command in (run, resume):
        command.add_argument(
            "--selection",
            choices=("keep", "new"),
            default="",
            help="where validation would now choose other points than a comparison began with",
        )
    job = add(
        "job",
        _job,
        "run a job of a study on the node an engine chose",
        "What launchers start, on this host and on engines' nodes. Exits with 0 where nothing is "
        "left to do, 75 where it was told to stop and has saved, 76 where this node cannot run it.",
    )
    job.add_argument("file", type=pathlib.Path, metavar="STUDY_DIR/jobs/BATCH.json")
    job.add_argument("--index", type=int, required=True, help="which job, from 0")
    job.add_argument("--slot", type=int, help="which process of the job's node, from 0")
    job.add_argument("--cpus", type=_numbers, default=(), help="cores to stay on: 0,1,2")
    tensors = add(
        "tensors",
        _tensors,
        "write a trained trial's queries, keys and values, layer by layer",
        "Restores the trial's last checkpoint and writes what its attention layers are given on "
        "the first examples of its first training batch; for python -m attention reconstruct.",
    )
    tensors.add_argument("directory", type=files.typed_path, metavar="TRIAL_DIR")
    tensors.add_argument("--examples", type=whole(1, 1_048_576), default=4, help="default: 4")
    tensors.add_argument(
        "--data_dir",
        type=files.typed_path,
        help="default: where the data lay when it was trained",
    )
    export = add(
        "export",
        _export,
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
    for command in (evaluate, export):
        command.add_argument(
            "--stage", help="tune, compare ... (default: the last one that has begun)"
        )
    for command, file in ((hardware, "hardware.json"), (tensors, "qkv.npz")):
        command.add_argument(
            "--out", type=files.typed_path, default=pathlib.Path(file), help=f"default: {file}"
        )
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _studies(options: argparse.Namespace) -> None:
    del options
    from sweeps.study import config

    for name, study in config.shipped().items():
        print(f"{name}\n    " + study.docstring.replace("\n", "\n    ") + "\n")


def _keys(options: argparse.Namespace) -> None:
    from sweeps.study import keys

    print(keys.describe(options.word))


def _plan(options: argparse.Namespace) -> None:
    from sweeps.monitoring import plan
    from sweeps.scheduling import preflight
    from sweeps.study import config

    studies = _resolved(options, planning=True)
    texts = [plan.render(study, options.step_seconds, options.topology) for study in studies]
    print("\n\n".join(texts), flush=True)
    for study in studies:
        for problem in preflight.refusals(study, elsewhere=bool(options.topology)):
            config.warn(f"{study.name}: {problem}")


def _resolved(options: argparse.Namespace, planning: bool = False) -> "list[Study]":
    """Returns the studies that --config names; what is wrong with one is told before any begins.

    All but the first are resolved as for `plan`: a point that they take from one before them is not
    selected yet.
    """
    from sweeps.study import config, study

    studies = [
        study.resolve(config.parse(name, options.overrides), planning=planning or number > 0)
        for number, name in enumerate(options.config.split(","))
    ]
    if len({study.directory for study in studies}) < len(studies):
        raise ValueError(
            f"--config={options.config} has two studies write into one directory: give each once, "
            "and no --config.name"
        )
    return studies


def _compile(options: argparse.Namespace) -> int:
    from sweeps.monitoring import compile as compiler
    from sweeps.study import config, study

    kernels = [f"--config.kernel={name}" for name in options.kernels.split(",") if name]
    rows = []
    for overrides in [[kernel] for kernel in kernels] or [[]]:
        parsed = config.parse(options.config, [*options.overrides, *overrides])
        resolved = study.resolve(parsed, planning=True)
        rows += compiler.rows(resolved, options.topology)
    write = compiler.as_json if options.json else compiler.render
    print(write(resolved, options.topology, rows))
    return 0 if all(row["fits"] for row in rows) else 1


def _run(options: argparse.Namespace) -> int:
    from sweeps.study import config, study

    studies, names = _resolved(options), options.config.split(",")
    worst = 0
    for number, resolved in enumerate(studies):
        if len(studies) > 1:
            print(f"study {number + 1} of {len(studies)}: {resolved.name}", flush=True)
        if number:  # what it takes from those before is on disk by now
            resolved = study.resolve(config.parse(names[number], options.overrides))
        worst = max(worst, _drive(resolved, options.selection, studies[number + 1 :]))
    return worst


def _resume(options: argparse.Namespace) -> int:
    from sweeps.records import layout
    from sweeps.study import study

    record = layout.study_record(options.directory)
    return _drive(study.from_record(record, options.directory), options.selection)


def _drive(resolved: "Study", selection: str, after: "Sequence[Study]" = ()) -> int:
    """Runs a study, others come `after` it; returns 0, 1 where a trial failed."""
    from sweeps.monitoring import plan, progress, survey
    from sweeps.scheduling import driver, preflight
    from sweeps.study import study_directory

    # What a change of settings repairs comes before the directory that fixes them.
    preflight.check_kernel(resolved)
    preflight.check_devices(resolved)
    preflight.check_engine(resolved)
    preflight.check_event_files(resolved)
    preflight.check_init2winit(resolved)
    print(plan.summary(resolved), flush=True)
    study_directory.prepare(resolved)
    preflight.check_data(resolved)
    planned = survey.planned(resolved.directory)
    planned.steps_after = plan.steps_after(resolved, after)
    with progress.Progress(planned) as shown:
        counts = driver.Driver(resolved, shown, selection).run()
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    print(f"{resolved.directory}: {summary}")
    print(f"table: python -m analysis table {files.quoted(resolved.directory)}")
    return 1 if set(counts) - {"done", "diverged"} else 0


def _evaluate(options: argparse.Namespace) -> int:
    from sweeps.monitoring import progress
    from sweeps.scheduling import downstream

    evaluate = downstream.Evaluate(
        options.directory,
        options.suite,
        options.checkpoints,
        options.stage,
        options.data_dir,
        options.overrides,
    )
    with progress.Progress() as shown:
        missing = evaluate.run(shown)
    for line in downstream.summary(evaluate.study, evaluate.wanted):
        print(line)
    total = len(evaluate.wanted)
    print(f"{total - len(missing)} of {total} checkpoints evaluated")
    print(f"table: python -m analysis report {files.quoted(options.directory)}")
    return 1 if missing else 0


def _cancel(options: argparse.Namespace) -> None:
    from sweeps.scheduling import cancel

    print(cancel.cancel(options.directory))


def _job(options: argparse.Namespace) -> int:
    from sweeps.records import submissions

    # First: what follows loads libraries that the node may lack.
    if options.slot is None:
        submissions.note_start(options.file, options.index)
    from sweeps.job import job

    return job.run(options.file, options.index, options.slot, options.cpus)


def _tensors(options: argparse.Namespace) -> None:
    from sweeps.training import tensors

    written = tensors.dump(options.directory, options.out, options.examples, options.data_dir)
    layers = f"{written['layers']} layers x {written['examples']} examples"
    print(f"wrote {options.out}: {layers}, step {written['global_step']}, {written['dtype']}")
    print(f"then: python -m attention reconstruct {files.quoted(options.out)}")


def _export(options: argparse.Namespace) -> None:
    from sweeps.algoperf import export

    written = export.export(options.directories, options.out, options.stage)
    for line in written.left_out:
        print(f"left out: {line}")
    stages = ", ".join(dict.fromkeys(written.stages))
    quoted = files.quoted(written.directory)
    print(
        f"{written.directory}: {written.trials} trials of stage {stages}\n"
        f"then: python -m analysis table {quoted}, or AlgoPerf's\n"
        f"    scoring/score_submissions.py --submission_directory={quoted}\n"
        "    (summaries; its --compute_performance_profiles needs all of AlgoPerf's base workloads)"
    )


def _hardware(options: argparse.Namespace) -> int:
    from sweeps.monitoring import hardware_check

    parts = tuple(options.parts.split(",")) if options.parts else hardware_check.PARTS
    for part in parts:
        if part not in hardware_check.PARTS:
            known = ", ".join(hardware_check.PARTS)
            raise ValueError(f"unknown part {part!r} of the check. Known: {known}")
    files.check_output(options.out)
    return 0 if hardware_check.run(options.out, parts) else 1


def _status(options: argparse.Namespace) -> None:
    from sweeps.monitoring import survey, view
    from sweeps.records import submissions

    if options.watch:
        view.watch(options.directory)
        return
    current = survey.StudyReader(options.directory).look()
    print(view.render(current))
    if not current.complete and not current.running:
        state = (
            "cancelled" if submissions.is_cancelled(current.directory) else "no trial is running"
        )
        command = f"python -m sweeps resume {files.quoted(current.directory)}"
        print(f"{state}; to go on, unless it is waiting for an engine: {command}")


if __name__ == "__main__":
    if sys.argv[1:2] != ["job"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # Ends it as Ctrl-C does: with the processes that it started, and their semaphores.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.argv[1:2] in (["studies"], ["keys"], ["status"]):
        # `... | head` ends these without a word. The others start processes, of which one that dies
        # would end them so, too; and a run outlives its reader.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
