"""The room's commands: `python -m attention list | check | reconstruct`."""

import argparse
import json
import math
import pathlib
import signal
import sys
from collections.abc import Iterable

from attention import checkout, files, precision, registry, table

_SCALES = "1:1,1:0.1,4:1"
_RECONSTRUCT = """\
Runs cached q, k, v through Standard attention, LASER without a maximum, the paper's max trick
and ours, in bfloat16 and float32, and compares with float64: ‖out − ref‖/‖ref‖ per tensor.

FILE.npz holds <layer>/query, /key, /value, as `python -m sweeps tensors` writes them (format:
attention/verification/cached_tensors.py). Without files normal tensors are drawn. A tensor of the
paper's shape takes about 6 s on two CPU cores, so its 4,800 take 8 hours.
The paper's figures stand beside those in bfloat16.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns its exit status: 0, 1 where a check failed, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
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
        help="error of every variant against a float64 reference, beside the paper's snippet",
        description="Prints ‖out − ref‖/‖ref‖ per variant, kernel, dtype, mask and scale, and "
        "exits with status 1 where a limit is exceeded. Two minutes on two CPU cores.",
    )
    checker.add_argument(
        "variants",
        nargs="*",
        help="variants (default: every mixer alone, and each modifier with standard and laser)",
    )
    checker.add_argument("--kernels", default="xla,jax_xla", help="comma-separated")
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
    _add_reconstruct(commands)
    return parser


def _add_reconstruct(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "reconstruct",
        help="the paper's bfloat16 reconstruction experiment, on cached or drawn q, k, v",
        description=_RECONSTRUCT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", nargs="*", type=files.typed_path, metavar="FILE.npz")
    command.add_argument(
        "--out",
        type=files.typed_path,
        default=pathlib.Path("reconstruction.json"),
        metavar="FILE.json",
        help="default: reconstruction.json",
    )
    command.add_argument("--causal", action="store_true", help="hide the future from each query")
    drawn = command.add_argument_group("without files")
    drawn.add_argument("--shape", help="N,H,D; default: the paper's, 1024,8,256")
    drawn.add_argument("--count", type=int, help="tensors per scale (default: 4)")
    drawn.add_argument(
        "--scales",
        help="factor on the queries:sd of the values, comma-separated (default: "
        f"{_SCALES}; 1:1 and 1:0.1 are like initialisation, 4:1 like trained: max probability "
        "0.42, 96 %% of them below 1e-3, 30 %% below 1e-7)",
    )
    drawn.add_argument("--seed", type=int, help="default: 0")
    command.set_defaults(run=_reconstruct)


def _reconstruct(options: argparse.Namespace) -> int:
    files.check_output(options.out)
    for_drawn = ("shape", "count", "scales", "seed")
    given = [name for name in for_drawn if getattr(options, name) is not None]
    if options.files and given:
        raise ValueError(f"--{given[0]} is for tensors that are drawn; files were given")
    from attention.verification import cached_tensors, reconstruction

    tensors: Iterable[cached_tensors.Tensors]
    if options.files:
        source = ", ".join(map(str, options.files))
        tensors = (one for path in options.files for one in cached_tensors.read(path))
    else:
        shape = _shape(options.shape or "1024,8,256")
        count = 4 if options.count is None else options.count
        if count < 1:
            raise ValueError(f"--count={count}: give a number from 1")
        scales, seed = _scales(options.scales or _SCALES), options.seed or 0
        tensors = cached_tensors.draw(shape, count, scales, seed)
        source = f"drawn, {count} per scale, seed {seed}"
    record = reconstruction.document(tensors, source, options.causal)
    files.write(options.out, json.dumps(record, indent=1, allow_nan=False) + "\n")
    print(reconstruction.text(record, by_layer=not options.files))
    print(f"wrote {options.out}")
    return 0


def _scales(text: str) -> dict[str, tuple[float, float]]:
    """Returns what stands for a layer's name to (factor on the queries, sd of the values)."""
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        if not all(math.isfinite(x) and x > 0 for pair in pairs for x in pair):
            raise ValueError
        return {f"normal, qs {qs:g}, vs {vs:g}": (qs, vs) for qs, vs in pairs}
    except ValueError:
        raise ValueError(
            f"--scales={text!r}: give pairs of positive numbers, queries:values: {_SCALES}"
        ) from None


def _list(options: argparse.Namespace) -> int:
    del options
    modifiers = sorted(table.MODIFIERS.items())
    for title, entries in (("Mixers", [*table.MIXERS.items()]), ("Modifiers", modifiers)):
        print(f"{title}")
        for name, entry in entries:
            print(f"  {name:<13} {entry.formula}")
            print(f"  {'':<13} parameters per layer: {entry.parameters}")
            if entry.hyperparameters:
                print(f"  {'':<13} hyperparameters: {', '.join(entry.hyperparameters)}")
            if entry.needs:
                needed = {**table.KERNEL_NEEDS, **table.MODEL_NEEDS}
                print(f"  {'':<13} needs: {', '.join(needed[need] for need in entry.needs)}")
            print(f"  {'':<13} source: {entry.source}")
    print("Kernels")
    for name, limits in table.KERNELS.items():
        where = " or ".join(limits.platforms) or "anywhere"
        remark = f"; {limits.remark}" if limits.remark else ""
        print(f"  {name:<13} {where}; {', '.join(limits.dtypes) or 'any dtype'}{remark}")
    print("A query that sees no key\n  returns 0, and no gradient (flax: the mean of all values)")
    names = registry.names()
    print("Variants: mixer[+modifier...], any number of modifiers in any order. With at most one:")
    for name in names:
        is_paper_row = name in map(table.canonical, table.PAPER_ROWS)
        mark = "  <- a row of the paper's table" if is_paper_row else ""
        print(f"  {name}{mark}")
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
        table.check_precision(kernel, options.matmul_precision)
    shape = _shape(options.shape)
    import jax

    from attention import devices
    from attention.verification import check

    platform = devices.default_platform()
    cases = list(check.cases(variants, kernels))
    if not cases:
        raise ValueError(
            f"no case for {', '.join(variants)} with kernels {', '.join(kernels)}: modifiers and "
            "differential mixers are checked with kernel xla; give --kernels=xla"
        )
    print(precision.describe(options.matmul_precision, platform))
    print(f"N, H, D = {shape}; limits: output, gradients; snippet: the paper's code, output;")
    learned = ", ".join(f"{limit:.0e} in {name}" for name, limit in check.LEARNED_LIMITS.items())
    print(f"learned: gradients of the variant's own leaves (limits: {learned})")
    header = ("variant", "kernel", "dtype", "mask", "qs", "vs")
    errors = ("output", "dQ", "dK", "dV", "dx", "learned", "snippet", "limits")
    print(_line(header, errors))
    failures = 0
    named = None if options.matmul_precision == "default" else options.matmul_precision
    for case in cases:
        with jax.default_matmul_precision(named):
            row = check.measure(case, shape)
        failures += not row.passed
        optional = ("" if x is None else f"{x:.1e}" for x in (row.learned, row.snippet))
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
    print("all within limits" if not failures else f"{failures} rows exceed their limits")
    return 1 if failures else 0


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--shape={text!r}: give N,H,D as three positive numbers: 256,4,64")
    length, heads, size = (int(part) for part in parts)
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
