"""The room's commands: `python -m sweeps studies | plan | run | status | resume | ...`."""

import argparse
import pathlib
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Returns 0; 1 where a trial has not finished; 2 for bad input; 130 if interrupted.
    """
    options, rest = _parser().parse_known_args(arguments)
    try:
        overrides = [part for part in rest if part.startswith("--config.")]
        unknown = [part for part in rest if part not in overrides]
        if unknown:
            raise ValueError(f"unknown argument {unknown[0]!r}; see python -m sweeps --help")
        if overrides and options.command not in ("plan", "compile", "run", "evaluate"):
            raise ValueError(f"{options.command} takes no {overrides[0]!r}")
        options.overrides = overrides
        return int(options.run(options))
    except (ValueError, OSError, EngineError) as error:
        print(f"python -m sweeps: {errors.message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    from workloads.arguments import positive, whole

    parser = argparse.ArgumentParser(
        prog="python -m sweeps",
        description="Plan and run studies: workload × attention variants × points × seeds.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, **more: Any
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, **more)
        command.set_defaults(run=run)
        return command

    add("studies", _studies, "studies that come with the package")
    keys = add("keys", _keys, "what --config.KEY=VALUE may change in a study")
    keys.add_argument("word", nargs="?", default="", help="only keys with it in their name")
    plan = add(
        "plan",
        _plan,
        "trials, steps, device-hours and disk, before anything starts",
        epilog=_KEYS,
        allow_abbrev=False,
    )
    run = add(
        "run",
        _run,
        "run a study, or continue it; may be interrupted and repeated",
        epilog=_KEYS,
        allow_abbrev=False,
    )
    for command in (plan, run):
        command.add_argument(
            "--config",
            required=True,
            metavar="STUDY[,STUDY...]",
            help="name or .py file; several, one after the other, with commas between them",
        )
    plan.add_argument("--step_seconds", type=positive(), help="measured time per step")
    plan.add_argument("--topology", default="", help="for which, such as v5e:8x8 or h100:1x1x8")
    _add_compile(
        add(
            "compile",
            _compile,
            "memory and time of its train step, by an accelerator's compiler",
            epilog=_KEYS,
            allow_abbrev=False,
        )
    )
    first = add("hardware", _hardware, "what this host's devices really do: ten minutes, one file")
    first.description = (
        "Checks kernels, train steps and two processes on the devices that are here, and writes "
        "every result to one file. Exit status 1 where one is bad."
    )
    file = pathlib.Path("hardware.json")
    first.add_argument("--out", type=files.typed_path, default=file, help=f"default: {file}")
    first.add_argument("--parts", default="", help="some of kernels,steps,processes")
    status = add("status", _status, "what is pending, running, done, diverged and failed")
    resume = add("resume", _resume, "continue a study from its directory alone")
    cancel = add("cancel", _cancel, "save and stop every trial of a study, wherever it runs")
    for command in (status, resume, cancel):
        command.add_argument("directory", type=files.typed_path, metavar="STUDY_DIR")
    status.add_argument("--watch", action="store_true", help="until the study is done")
    _add_evaluate(
        add(
            "evaluate",
            _evaluate,
            "what a study's trained models can do, by a suite",
            epilog=_KEYS,
            allow_abbrev=False,
        )
    )
    for command in (run, resume):
        command.add_argument(
            "--selection",
            choices=("keep", "new"),
            default="",
            help="where validation would now choose other points than a comparison began with",
        )
    job = add("job", _job, "run a job of a study on the node an engine chose")
    job.description = (
        "What launchers start, on this host and on engines' nodes. Exits with 0 where nothing is "
        "left to do, 75 where it was told to stop and has saved, 76 where this node cannot run it."
    )
    job.add_argument("file", type=pathlib.Path, metavar="STUDY_DIR/jobs/BATCH.json")
    job.add_argument("--index", type=int, required=True, help="which job, from 0")
    job.add_argument("--slot", type=int, help="which worker of the job's node, from 0")
    job.add_argument("--cpus", type=_numbers, default=(), help="cores to stay on: 0,1,2")
    tensors = add(
        "tensors", _tensors, "write a trained trial's queries, keys and values, layer by layer"
    )
    tensors.description = (
        "Restores the trial's last checkpoint and writes what its attention layers are given on "
        "the first examples of its first training batch; for python -m attention reconstruct."
    )
    tensors.add_argument("directory", type=files.typed_path, metavar="TRIAL_DIR")
    out = pathlib.Path("qkv.npz")
    tensors.add_argument("--out", type=files.typed_path, default=out, help=f"default: {out}")
    tensors.add_argument("--examples", type=whole(1, 1_048_576), default=4, help="default: 4")
    tensors.add_argument(
        "--data_dir",
        type=files.typed_path,
        help="default: where the data lay when it was trained",
    )
    _add_export(add("export", _export, "write a study as AlgoPerf's scoring reads it"))
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _add_compile(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Compiles the train step of every variant for devices that need not be here. Exit status 1 "
        "where one does not fit into their memory."
    )
    command.add_argument("--config", required=True, metavar="STUDY", help="name or .py file")
    command.add_argument(
        "--topology",
        required=True,
        help="v5e:8x8, v5e:8x8*2 (two slices), v4:2x2x2, v5p:2x2x4, h100:1x1x8 ...",
    )
    command.add_argument(
        "--kernels", default="", help="compare these kernels, such as xla,splash; default: its own"
    )
    command.add_argument("--json", action="store_true", help="one object, with every figure")


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    from workloads.arguments import whole
    from workloads.downstream import suites

    command.description = (
        "Puts every trial that is done before a suite's questions and writes "
        "TRIAL/downstream/STEP/SUITE/results.json and samples.jsonl.gz. May be interrupted and "
        "repeated: finished tasks are not computed again. --config.launcher=... and its keys, "
        "max_attempts and mesh.* may be others than those of training. Exit status 1 where "
        "a checkpoint could not be evaluated."
    )
    command.add_argument("directory", type=files.typed_path, metavar="STUDY_DIR")
    command.add_argument("--suite", required=True, help=f"of {', '.join(suites.names())}")
    command.add_argument(
        "--checkpoints",
        type=whole(1, 10_000),
        default=1,
        help="of each trial, the last ones (default: 1); config.keep_checkpoints has them kept",
    )
    command.add_argument(
        "--stage", default="", help="tune, compare ... (default: the last one that has begun)"
    )
    command.add_argument(
        "--data_dir",
        type=files.typed_path,
        help="where downstream/ and the tokenizer lie (default: the study's data)",
    )


def _add_export(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Writes DIR/<variant>/study_<seed>/<workload>_jax/trial_<point> from a stage of each "
        "study, whole or not at all. DIR must not exist."
    )
    command.add_argument("directories", type=files.typed_path, metavar="STUDY_DIR", nargs="+")
    command.add_argument("--format", required=True, choices=("algoperf",))
    command.add_argument("--stage", help="tune, compare ... (default: the last one that has begun)")
    text = "default: export/algoperf_STAGE in the first STUDY_DIR"
    command.add_argument("--out", type=files.typed_path, metavar="DIR", help=text)


def _studies(options: argparse.Namespace) -> int:
    del options
    from sweeps.study import config

    for name, study in config.shipped().items():
        print(f"{name}\n    " + study.docstring.replace("\n", "\n    ") + "\n")
    return 0


def _keys(options: argparse.Namespace) -> int:
    from sweeps.study import keys

    print(keys.describe(options.word))
    return 0


def _plan(options: argparse.Namespace) -> int:
    from sweeps.monitoring import plan
    from sweeps.scheduling import preflight
    from sweeps.study import config

    chosen = options.step_seconds, options.topology
    found = _resolved(options, planning=True)
    print("\n\n".join(plan.render(one, *chosen) for one in found), flush=True)
    for one in found:
        for problem in preflight.refusals(one, elsewhere=bool(options.topology)):
            config.warn(f"{one.name}: {problem}")
    return 0


def _resolved(options: argparse.Namespace, planning: bool = False) -> "list[Study]":
    """Returns the studies that --config names; what is wrong with one is told before any begins.

    All but the first are resolved as for `plan`: a point that they take from one before them is not
    selected yet.
    """
    from sweeps.study import config, study

    names = options.config.split(",")
    if "" in names:
        raise ValueError(f"--config={options.config}: a name between commas is empty")
    found = [
        study.resolve(config.parse(name, options.overrides), planning=planning or number > 0)
        for number, name in enumerate(names)
    ]
    taken = {one.directory for one in found}
    if len(taken) < len(found):
        raise ValueError(
            f"--config names {len(found)} studies for {len(taken)} directories, "
            f"{', '.join(map(str, sorted(taken)))}: give each once, and no --config.name"
        )
    return found


def _compile(options: argparse.Namespace) -> int:
    from sweeps.monitoring import compile as compiler
    from sweeps.study import config, study

    chosen = [[f"--config.kernel={name}"] for name in options.kernels.split(",")]
    found = []
    for kernel in chosen if options.kernels else [[]]:
        parsed = config.parse(options.config, [*options.overrides, *kernel])
        resolved = study.resolve(parsed, planning=True)
        found += compiler.rows(resolved, options.topology)
    write = compiler.as_json if options.json else compiler.render
    print(write(resolved, options.topology, found))
    return 0 if all(row["fits"] for row in found) else 1


def _run(options: argparse.Namespace) -> int:
    from sweeps.study import config, study

    studies, worst = _resolved(options), 0
    for number, (name, resolved) in enumerate(
        zip(options.config.split(","), studies, strict=True), 1
    ):
        if len(studies) > 1:
            print(f"study {number} of {len(studies)}: {resolved.name}", flush=True)
        if number > 1:  # what it takes from those before is there by now
            resolved = study.resolve(config.parse(name, options.overrides))
        worst = max(worst, _drive(resolved, options.selection, studies[number:]))
        if worst == 130:
            if len(studies) > 1:
                print("the same command goes on with all studies", flush=True)
            break
    return worst


def _resume(options: argparse.Namespace) -> int:
    from sweeps.records import layout
    from sweeps.study import study

    record = layout.study_record(options.directory)
    return _drive(study.from_record(record, options.directory), options.selection)


def _drive(resolved: "Study", selection: str, after: "Sequence[Study]" = ()) -> int:
    """Runs a study, others come `after` it; returns 0, 1 where a trial failed, 130 if stopped."""
    from sweeps.monitoring import plan, progress, survey
    from sweeps.scheduling import driver, preflight
    from sweeps.scheduling.scheduler import Interrupted
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
        try:
            counts = driver.Driver(resolved, shown, selection).run()
        except Interrupted:
            shown.say(
                f"interrupted; continue with: python -m sweeps resume "
                f"{files.quoted(resolved.directory)}"
            )
            return 130
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    print(f"{resolved.directory}: {summary}")
    print(f"table: python -m analysis table {files.quoted(resolved.directory)}")
    return 1 if set(counts) - {"done", "diverged"} else 0


def _evaluate(options: argparse.Namespace) -> int:
    from sweeps.monitoring import progress
    from sweeps.scheduling import downstream
    from sweeps.scheduling.scheduler import Interrupted

    more = options.checkpoints, options.stage, options.data_dir, options.overrides
    asked = downstream.Evaluate(options.directory, options.suite, *more)
    with progress.Progress() as shown:
        try:
            lacking = asked.run(shown)
        except Interrupted:
            shown.say("interrupted; the same command goes on with what is left")
            return 130
    for line in downstream.summary(asked.study, asked.wanted):
        print(line)
    print(f"{len(asked.wanted) - len(lacking)} of {len(asked.wanted)} checkpoints evaluated")
    print(f"table: python -m analysis report {files.quoted(options.directory)}")
    return 1 if lacking else 0


def _cancel(options: argparse.Namespace) -> int:
    from sweeps.scheduling import cancel

    print(cancel.cancel(options.directory))
    return 0


def _job(options: argparse.Namespace) -> int:
    from sweeps.records import submissions

    # First: what follows loads libraries that the node may lack.
    if options.slot is None:
        submissions.note_start(options.file, options.index)
    from sweeps.job import job

    return job.run(options.file, options.index, options.slot, options.cpus)


def _tensors(options: argparse.Namespace) -> int:
    from sweeps.training import tensors

    about = tensors.dump(options.directory, options.out, options.examples, options.data_dir)
    layers = f"{about['layers']} layers x {about['examples']} examples"
    print(f"wrote {options.out}: {layers}, step {about['global_step']}, {about['dtype']}")
    print(f"then: python -m attention reconstruct {files.quoted(options.out)}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from sweeps.algoperf import export

    written = export.export(options.directories, options.out, options.stage)
    for line in written.left_out:
        print(f"left out: {line}")
    stages = ", ".join(dict.fromkeys(written.stages))
    print(f"{written.directory}: {written.trials} trials of stage {stages}")
    print(f"then: python -m analysis table {files.quoted(written.directory)}, or AlgoPerf's")
    print(
        f"    scoring/score_submissions.py --submission_directory={files.quoted(written.directory)}"
    )
    print(
        "    (summaries; its --compute_performance_profiles needs all of AlgoPerf's base workloads)"
    )
    return 0


def _hardware(options: argparse.Namespace) -> int:
    from sweeps.monitoring import hardware_check

    parts = tuple(options.parts.split(",")) if options.parts else hardware_check.PARTS
    for part in parts:
        if part not in hardware_check.PARTS:
            known = ", ".join(hardware_check.PARTS)
            raise ValueError(f"unknown part {part!r} of the check. Known: {known}")
    files.check_output(options.out)
    return 0 if hardware_check.run(options.out, parts) else 1


def _status(options: argparse.Namespace) -> int:
    from sweeps.monitoring import survey, view
    from sweeps.records import submissions

    if options.watch:
        view.watch(options.directory)
        return 0
    found = survey.StudyReader(options.directory).look()
    print(view.render(found))
    if not found.complete and not found.running:
        state = "cancelled" if submissions.is_cancelled(found.directory) else "no trial is running"
        again = f"python -m sweeps resume {files.quoted(found.directory)}"
        print(f"{state}; to go on, unless it is waiting for an engine: {again}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] != ["job"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # Ends it as Ctrl-C does: with the processes that it started, and their semaphores.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.argv[1:2] in (["studies"], ["keys"], ["status"]):
        # `... | head` ends these without a word. The others start processes, of which one that dies
        # would end them so, too; and a run outlives its reader.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
