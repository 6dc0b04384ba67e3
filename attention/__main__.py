"""The room's commands: `python -m attention list` and `python -m attention check`."""

import argparse
import signal
import sys

from attention import checkout, registry, table

_DEFAULT = (*table.PAPER_ROWS, *table.DIFF_ROWS)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns its exit status: 0, 1 where a check failed, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        checkout.check()
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
    lister = commands.add_parser("list", help="names, formulas, parameters added, kernels")
    lister.set_defaults(run=_list)
    checker = commands.add_parser(
        "check",
        help="error of every variant against a float64 oracle, beside the paper's snippet",
        description="Prints ‖out − ref‖/‖ref‖ per variant, kernel, dtype, mask and scale, and "
        "exits with status 1 where a limit is exceeded. About a minute on two CPU cores.",
    )
    checker.add_argument("variants", nargs="*", help="variants (default: the paper's rows)")
    checker.add_argument("--kernels", default="xla,jax_xla", help="comma-separated")
    checker.add_argument(
        "--shape", default="256,4,64", help="N,H,D (the paper's: 1024,8,256; takes minutes)"
    )
    checker.set_defaults(run=_check)
    return parser


def _list(options: argparse.Namespace) -> int:
    del options
    for title, entries in (("Mixers", table.MIXERS), ("Modifiers", table.MODIFIERS)):
        print(f"{title}")
        for name, entry in entries.items():
            print(f"  {name:<13} {entry.formula}")
            print(f"  {'':<13} parameters per layer: {entry.parameters}")
            if entry.hyperparameters:
                print(f"  {'':<13} hyperparameters: {', '.join(entry.hyperparameters)}")
            print(f"  {'':<13} source: {entry.source}")
    print(f"Kernels\n  {', '.join(table.KERNELS)}")
    names = registry.names()
    print(f"Variants ({len(names)}; mixer[+modifier...], any order of modifiers)")
    for name in names:
        mark = "  <- a row of the paper's table" if _is_paper_row(name) else ""
        print(f"  {name}{mark}")
    return 0


def _is_paper_row(name: str) -> bool:
    return name in {table.canonical(row) for row in table.PAPER_ROWS}


def _check(options: argparse.Namespace) -> int:
    variants = tuple(table.canonical(name) for name in options.variants) or _DEFAULT
    kernels = tuple(options.kernels.split(","))
    for kernel in kernels:
        table.check("standard", {}, kernel)
    shape = _shape(options.shape)
    from attention import check

    cases = list(check.cases(variants, kernels))
    if not cases:
        raise ValueError(
            f"no case for {', '.join(variants)} with kernels {', '.join(kernels)}: modifiers and "
            "differential mixers are checked with kernel xla; give --kernels=xla"
        )
    print(f"N, H, D = {shape}; limits: output, gradients; snippet: the paper's code, output;")
    learned = ", ".join(f"{limit:.0e} in {name}" for name, limit in check.LEARNED_LIMITS.items())
    print(f"learned: gradients of λ and the head norm of differential mixers (limits: {learned})")
    header = ("variant", "kernel", "dtype", "mask", "qs", "vs")
    errors = ("output", "dQ", "dK", "dV", "learned", "snippet", "limits")
    print(_line(header, errors))
    failures = 0
    for case in cases:
        row = check.measure(case, shape)
        failures += not row.passed
        optional = ("" if x is None else f"{x:.1e}" for x in (row.learned, row.snippet))
        print(
            _line(
                (case.variant, case.kernel, case.dtype, case.mask, f"{case.qs:g}", f"{case.vs:g}"),
                (
                    f"{row.output:.1e}",
                    *(f"{error:.1e}" for error in row.gradients),
                    *optional,
                    f"{row.limits[0]:.1e} {row.limits[1]:.1e}",
                ),
            )
            + ("" if row.passed else "  EXCEEDED"),
            flush=True,
        )
    print("all within limits" if not failures else f"{failures} rows exceed their limits")
    return 1 if failures else 0


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--shape={text!r}: give N,H,D as three positive numbers: 256,4,64")
    length, heads, size = (int(part) for part in parts)
    return length, heads, size


def _line(names: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    widths = (21, 8, 9, 7, 3, 4)
    left = " ".join(f"{name:<{width}}" for name, width in zip(names, widths, strict=True))
    return left + " ".join(f"{number:>8}" for number in numbers)


if __name__ == "__main__":
    # `... | head` ends the command without a word, as it does others.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
