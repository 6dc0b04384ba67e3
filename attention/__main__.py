"""The package's commands: `python -m attention list | check | tune`."""

import argparse
import contextlib
import functools
import signal
import sys

from attention import backends, registry, table
from attention.common import accelerators, checkout, extras, precision
from attention.compilers import topologies
from attention.entries import MODEL_NEEDS


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns its exit status: 0, 1 where a check failed, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        with extras.explained("attention"):
            return int(options.run(options))
    except ValueError as error:
        print(f"python -m attention: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attention",
        description="Attention variants: what there is, and how exact it is on this machine.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="names, formulas, parameters added, kernels").set_defaults(
        run=_list
    )
    checker = commands.add_parser(
        "check",
        help="laws of every variant, and its error against a float64 reference",
        description="Prints what outputs of a variant see of later and masked tokens, of other "
        "segments and examples: nothing. Then ‖out − ref‖/‖ref‖ per variant, kernel, dtype, mask "
        "and scale. Status 1 where there is a leak, or a limit is exceeded. Eight minutes of CPU. "
        "`check standard laser --shape=1024,8,256` is the paper's comparison in bfloat16: standard "
        "attention, LASER as printed, the paper's code, ours.",
    )
    checker.add_argument(
        "variants",
        nargs="*",
        help="variants (default: every mixer alone, and each modifier with standard and laser)",
    )
    checker.add_argument(
        "--kernels",
        default="xla,jax_xla",
        help="comma-separated; cudnn, splash and fused in bfloat16 alone",
    )
    checker.add_argument(
        "--matmul_precision",
        choices=precision.NAMES,
        default="default",
        help="what products of float32 arrays are computed in; limits are for float32",
    )
    checker.add_argument(
        "--shape", default="256,4,64", help="N,H,D (the paper's: 1024,8,256; takes minutes)"
    )
    checker.set_defaults(run=_check)
    tuner = commands.add_parser(
        "tune",
        help="tiles of a kernel for a shape, by a TPU's compiler or by time",
        description="Tries tiles of the fused kernel, forward and backward, and prints the best as "
        "flex's tiles=. With --topology by the cycles that the TPU's compiler counts, which needs "
        "no TPU (T = 4,096: some minutes); else by time on the TPU or GPU that is here.",
    )
    tuner.add_argument(
        "shapes", nargs="+", metavar="SHAPE", help="B,T,H,D or B,T,H,K,D: K key heads"
    )
    tuner.add_argument("--kernel", default="fused", help="one that takes tiles")
    tuner.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    tuner.add_argument("--mask", default="causal", choices=("causal", "full"))
    tuner.add_argument("--topology", choices=accelerators.COMPILED_TPUS, help="a kind of TPU")
    tuner.set_defaults(run=_tune)
    return parser


def _list(options: argparse.Namespace) -> int:
    modifiers = dict(sorted(table.MODIFIERS.items()))
    for title, entries in (("Mixers", table.MIXERS), ("Modifiers", modifiers)):
        print(title)
        for name, entry in entries.items():
            print(f"  {name:<13} {entry.formula}")
            print(f"  {'':<13} parameters per layer: {entry.parameters}")
            if entry.hyperparameters:
                print(f"  {'':<13} hyperparameters: {', '.join(entry.hyperparameters)}")
            if entry.needs:
                needed = {**backends.KERNEL_NEEDS, **MODEL_NEEDS}
                print(f"  {'':<13} needs: {', '.join(needed[need] for need in entry.needs)}")
            print(f"  {'':<13} source: {entry.source}")
    print("Kernels")
    for name, limits in backends.KERNELS.items():
        where = " or ".join(limits.platforms) or "anywhere"
        remark = f"; {limits.remark}" if limits.remark else ""
        print(f"  {name:<13} {where}; {', '.join(limits.dtypes) or 'any dtype'}{remark}")
    print("A query that sees no key\n  returns 0, and no gradient (flax: the mean of all values)")
    print("Variants: mixer[+modifier...], any number of modifiers in any order. With at most one:")
    paper_rows = [*map(table.canonical, table.PAPER_ROWS)]
    for name in registry.names():
        print(f"  {name}" + "  <- a row of the paper's table" * (name in paper_rows))
    return 0


def default_variants() -> tuple[str, ...]:
    """Returns what `check` checks unless it is told: mixers alone, modifiers one by one."""
    pairs = [f"{mixer}+{name}" for mixer in ("standard", "laser") for name in table.MODIFIERS]
    return (*table.MIXERS, *pairs)


def _check(options: argparse.Namespace) -> int:
    variants = tuple(dict.fromkeys(map(table.canonical, options.variants))) or default_variants()
    kernels = tuple(dict.fromkeys(options.kernels.split(",")))
    for kernel in kernels:
        table.check("standard", {}, kernel)
        backends.check_precision(kernel, options.matmul_precision)
    shape = _shape(options.shape)
    import jax

    from attention.common import devices
    from attention.verification import check

    cases = list(check.cases(variants, kernels))
    if not cases:
        raise ValueError(
            f"no case for {', '.join(variants)} with kernels {', '.join(kernels)}: modifiers and "
            "differential mixers are checked with kernel xla; give --kernels=xla"
        )
    print(precision.describe(options.matmul_precision, devices.default_platform()))
    broken = [name for name in variants if not _keeps_laws(name)]
    print(f"N, H, D = {shape}; limits: output, gradients; outputs of the paper's LASER: printed,")
    print("the equation without a maximum; snippet, its code, which takes the maximum out;")
    learned = ", ".join(f"{limit:.0e} in {name}" for name, limit in check.LEARNED_LIMITS.items())
    print(f"learned: gradients of the variant's own leaves (limits: {learned})")
    errors = ("output", "dQ", "dK", "dV", "dx", "learned", *check.PAPER, "limits")
    print(_line(("variant", "kernel", "dtype", "mask", "qs", "vs"), errors))
    failures = 0
    named = None if options.matmul_precision == "default" else options.matmul_precision
    for case in (case for case in cases if case.variant not in broken):
        with jax.default_matmul_precision(named):
            row = check.measure(case, shape)
        failures += not row.passed
        of_paper = (row.paper.get(name) for name in check.PAPER)
        optional = ("" if x is None else f"{x:.1e}" for x in (row.learned, *of_paper))
        print(
            _line(
                (case.variant, case.kernel, case.dtype, case.mask, f"{case.qs:g}", f"{case.vs:g}"),
                (
                    f"{row.output:.1e}",
                    *(f"{row.gradients[name]:.1e}" for name in ("query", "key", "value")),
                    f"{row.gradients['x']:.1e}" if "x" in row.gradients else "",
                    *optional,
                    f"{row.limits[0]:.1e} {row.limits[1]:.1e}",
                ),
            )
            + ("" if row.passed else "  EXCEEDED"),
            flush=True,
        )
    problems = [f"{failures} rows exceed their limits"] if failures else []
    if broken:
        problems.append(f"not compared, since they break a law: {', '.join(broken)}")
    print("; ".join(problems) or "all within limits")
    return 1 if problems else 0


def _tune(options: argparse.Namespace) -> int:
    form = "B,T,H,D or B,T,H,K,D, such as 1,4096,8,128"
    shapes = [_numbers(text, form, 4, 5) for text in options.shapes]
    where = options.topology and accelerators.smallest(options.topology)
    compiling = topologies.compiling_for(where, True) if where else contextlib.nullcontext("")
    with compiling as scratch:
        from attention import tuning
        from attention.common import devices
        from attention.flex import flex

        platform = "tpu" if where else devices.default_platform()
        if platform == "cpu":
            raise ValueError(
                "tune times kernels on a TPU or GPU, and JAX runs on 'cpu' here; give "
                "--topology=v5e to try tiles by the TPU's compiler (pip install "
                "'attnperf[compile-tpu]')"
            )
        mask = "causal" if options.mask == "causal" else None
        attend = functools.partial(flex, mask=mask, kernel=options.kernel)
        for shape in shapes:
            measure = functools.partial(tuning.time, attend, shape, options.dtype)
            if where:
                problem = attend, shape, options.dtype, where, scratch
                measure = functools.partial(tuning.cycles, *problem)
            print(f"shape {shape}, {options.dtype}; {f'cycles on {where.kind}' if where else 'ms'}")
            tried = []
            for trial in tuning.trials(measure, shape[1], platform, together=bool(where)):
                kernel, sizes, figure = trial
                number = figure if isinstance(figure, str) else f"{figure:,.5g}"
                print(f"  {kernel:<9} {sizes or 'as planned'!s:<42} {number}", flush=True)
                tried.append(trial)
            tiles = tuning.best(tried)
            print(f"tiles={tiles}" if tiles else "the plan's tiles are the best: leave tiles= out")
    return 0


def _numbers(text: str, form: str, *counts: int) -> tuple[int, ...]:
    """Returns so many positive numbers. Raises ValueError for others, with the form to give."""
    parts = text.split(",")
    if len(parts) not in counts or not all(part.strip().isdigit() and int(part) for part in parts):
        raise ValueError(f"shape {text!r}: give {form}, positive numbers")
    return tuple(map(int, parts))


def _keeps_laws(name: str) -> bool:
    """Prints which laws a variant keeps, or what it leaks; returns whether it keeps all."""
    from attention.verification import check, laws

    variant = check.make_variant(name)
    problem = laws.problem(variant)
    kept = f"keeps the laws of {', '.join(laws.asked(variant))}"
    print(f"{name}: {problem or kept}", flush=True)
    return not problem


def _shape(text: str) -> tuple[int, int, int]:
    length, heads, size = _numbers(text, "--shape=N,H,D, such as 256,4,64", 3)
    if length < 2 or length * heads * max(length, size) > 2**28:
        raise ValueError(
            f"--shape={text!r}: N is at least 2 (one key has no gradient to compare), N·N·H and "
            "N·H·D at most 2^28 (numbers of 2 GiB in float64); the paper's is 1024,8,256"
        )
    return length, heads, size


def _line(names: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    widths = (21, 8, 9, 7, 3, 4)
    left = " ".join(f"{name:<{width}}" for name, width in zip(names, widths, strict=True))
    return left + " ".join(f"{number:>8}" for number in numbers)


if __name__ == "__main__":
    checkout.start("attention")
    # `... | head` ends the command without a word, as it does others.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
