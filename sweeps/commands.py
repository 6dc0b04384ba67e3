"""What the commands of `python -m sweeps` do; they are loaded when one is called.

None loads JAX here: `compile`, `hardware` and the checks of data have processes of their own.
"""

import argparse
import dataclasses
from collections.abc import Callable

from attention.common import files
from attention.table import unknown
from sweeps.launchers import device_locks
from sweeps.monitoring import progress, survey, view
from sweeps.records import layout, submissions
from sweeps.scheduling import downstream, driver, engines, plan, preflight
from sweeps.study import config, keys, study, study_directory
from sweeps.study.study import Study


def _studies(options: argparse.Namespace) -> None:
    del options
    for name, shipped in config.shipped().items():
        print(f"{name}\n    " + shipped.docstring.replace("\n", "\n    ") + "\n")


def _keys(options: argparse.Namespace) -> None:
    print(keys.describe(options.word))


def _plan(options: argparse.Namespace) -> None:
    resolved = study.resolve(config.parse(options.config, options.overrides), planning=True)
    print(plan.render(resolved, options.step_seconds), flush=True)
    for problem in preflight.refusals(resolved):
        config.warn(problem)


def _compile(options: argparse.Namespace) -> int:
    from sweeps.compilers import compile as compiler

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
    return _drive(study.resolve(config.parse(options.config, options.overrides)), options.brief)


def _resume(options: argparse.Namespace) -> int:
    return _drive(study.from_record(layout.study_record(options.directory), options.directory))


def _drive(resolved: Study, brief: bool = False) -> int:
    """Runs a study; returns 0, 1 where a trial failed. brief: with few lines about it."""
    cancellation = submissions.cancellation(resolved.directory)
    # What a change of settings repairs comes before the directory that fixes them.
    preflight.check_kernel(resolved)
    preflight.check_devices(resolved)
    preflight.check_model(resolved)
    preflight.check_engine(resolved)
    preflight.check_event_files(resolved)
    is_new = not study_directory.check_same(resolved)
    if not brief:
        print(plan.summary(resolved), flush=True)
    if is_new:  # so that `cancel` has a study while its data are prepared
        study_directory.prepare(resolved, cancellation)
    preflight.check_laws(resolved)
    resolved = dataclasses.replace(resolved, data_digest=preflight.check_data(resolved))
    if not is_new:  # what is refused up to here leaves the study as it was
        study_directory.prepare(resolved, cancellation)
    with progress.Progress(survey.planned(resolved.directory), brief) as shown:
        counts = driver.run(resolved, shown)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    print(f"{resolved.directory}: {summary}")
    if not brief:
        print(f"table: python -m analysis table {files.quoted(resolved.directory)}")
    return 1 if set(counts) - {"done", "diverged"} else 0


def _evaluate(options: argparse.Namespace) -> int:
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
    total = len(evaluate.wanted)
    print(f"{total - len(missing)} of {total} checkpoints evaluated")
    print(f"table: python -m analysis report {files.quoted(options.directory)}")
    return 1 if missing else 0


def _cancel(options: argparse.Namespace) -> None:
    print(engines.cancel(options.directory))


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
    from sweeps.compilers import hardware_check

    parts = tuple(options.parts.split(",") if options.parts else hardware_check.PARTS)
    for part in parts:
        if part not in hardware_check.PARTS:
            raise ValueError(unknown("part", part, hardware_check.PARTS))
    files.check_output(options.out)
    return 0 if hardware_check.run(options.out, parts) else 1


def _status(options: argparse.Namespace) -> int:
    if options.watch:
        progress.watch(options.directory)
    current = survey.StudyReader(options.directory).look()
    if not options.watch:
        engines.ask_queue(current)
        print(view.as_json(current) if options.json else view.render(current))
    if not (current.complete or options.watch or options.json):
        holders = device_locks.describe(device_locks.holders())
        for sentence in holders:
            print(sentence)
        command = f"python -m sweeps resume {files.quoted(current.directory)}"
        if submissions.is_cancelled(current.directory):
            print(f"cancelled; to go on: {command}")
        elif not current.running:
            # Nobody knows whether a driver is alive: on another host it leaves no trace here.
            waits = holders or current.at_engines
            unless = "unless a driver of the study waits for these, " if waits else ""
            print(f"no trial is running; {unless}to go on: {command}")
    return 0 if current.complete else 3


def _resubmit(options: argparse.Namespace) -> None:
    print(engines.resubmit(options.directory, options.jobs))


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "studies": _studies,
    "keys": _keys,
    "plan": _plan,
    "compile": _compile,
    "hardware": _hardware,
    "run": _run,
    "status": _status,
    "resume": _resume,
    "cancel": _cancel,
    "resubmit": _resubmit,
    "evaluate": _evaluate,
    "export": _export,
}
