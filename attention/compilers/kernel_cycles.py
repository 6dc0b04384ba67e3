"""The cycles of Pallas kernels on a TPU, from the compiler's dump and the traced program.

The dump lists a kernel's bundles (instructions) once, its branches among them. How often a branch
runs is found from the traced kernel: its condition is computed for all steps of the grid.
"""

import math
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention.common import accelerators

_TOTAL = "schedule-analysis_final_bundles"
_TEXT = "final_bundles"
# Bundles after a jump that are run whether or not it is taken.
_DELAY = 5


class _Branch(NamedTuple):
    """A condition of a kernel: the steps in which it holds, and the FLOP of what it then does."""

    steps: int
    flop: float


def cycles(
    call: dict[str, Any], moved: int, device: accelerators.Accelerator, scratch: str
) -> float:
    """Returns the cycles of a kernel's call, 0 if the compiler's dump does not have it.

    call: of `pallas_calls`. moved: bytes of its operands and results. The most of these: its
    bundles in all steps of its grid, each branch as often as it runs; what its products take at the
    matrix units' peak (which wide heads reach before their bundles end); what is moved, at the
    memory's bandwidth. A loop inside a kernel counts once. Where branches in the dump are not those
    of the traced kernel, all count at every step. Devices that divide queries are counted as the
    first, whose shifts end the kernel's name.
    """
    total = re.search(r"bundles:\s+(\d+)", _dump(scratch, _TOTAL, call["name"]))
    if total is None:
        return 0.0
    grid, clock = call["grid_mapping"].grid, device.clock_ghz * 1e9
    shifts = [int(shift) for shift in re.findall(r"\d+", call["name"].partition("_shifts_")[2])]
    steps, branches = math.prod(grid), kernel_branches(call["jaxpr"], grid, shifts)
    sizes = branch_sizes(_dump(scratch, _TEXT, call["name"]))
    bundles = _executed(int(total[1]), sizes, branches, steps)
    flop = steps * flop_of(call["jaxpr"])
    flop -= sum((steps - branch.steps) * branch.flop for branch in branches)
    multiplied = flop / (device.peak_tflops * 1e12) * clock
    return max(bundles, multiplied, moved / (device.bandwidth_gb * 1e9) * clock)


def _dump(scratch: str, kind: str, name: str) -> str:
    """Returns the compiler's dump of one kind of a kernel, '' without one."""
    for path in pathlib.Path(scratch).glob(f"*-{name}*-{kind}.txt"):
        dumped = re.fullmatch(rf"\d+-(.*)-\d+-{kind}\.txt", path.name)
        if dumped and kernel_name(dumped[1]) == name:
            return path.read_text("utf-8", errors="replace")
    return ""


def kernel_name(instruction: str) -> str:
    """Returns a kernel's name from that of one of its calls, 'splash_mha_fwd.3.clone'."""
    return re.sub(r"(\.(\d+|clone|remat))+$", "", instruction)


def _executed(total: int, sizes: list[int], branches: list[_Branch], steps: int) -> float:
    """Returns the bundles of all steps."""
    # The compiler drops conditions that it knows to hold always, or never.
    varying = [branch for branch in branches if 0 < branch.steps < steps]
    for kept in (branches, varying):
        if len(kept) == len(sizes):
            pairs = zip(sizes, kept, strict=True)
            return steps * total - sum(size * (steps - branch.steps) for size, branch in pairs)
    return steps * total


def branch_sizes(text: str) -> list[int]:
    """Returns the bundles inside each innermost branch of a dump of final bundles, in order."""
    jumps: list[tuple[int, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        address = re.match(r"\s*(0x[0-9a-f]+)\s", line)
        if address is None:
            continue
        place = int(address[1], 16)
        for region in re.findall(r"Start(?:/End empty)? region (\d+)", line):
            labels.setdefault(region, place)
        jumps += [
            (place, to) for to in re.findall(r"sbr\.rel \(.*?\) target = \$region(\d+)", line)
        ]
    spans = [(place, labels[to]) for place, to in jumps if labels.get(to, 0) > place]
    return [
        max(0, end - start - _DELAY)
        for start, end in spans
        if not any(start < other < end for other, _ in spans)
    ]


def kernel_branches(kernel: Any, grid: tuple[int, ...], read: Sequence[int] = ()) -> list[_Branch]:
    """Returns the conditions of a traced kernel that follow from its place in the grid.

    read: the numbers in its first array, if that is prefetched.
    """
    places = np.indices(grid).reshape((len(grid), -1)) if grid else np.zeros((0, 1), int)
    known: dict[Any, Any] = {kernel.invars[0]: np.asarray(read, np.int32)} if read else {}
    branches = []
    for equation in kernel.eqns:
        if equation.primitive.name == "cond":
            index = _value(equation.invars[0], known)
            if index is not None:
                steps = int(np.broadcast_to(index, places.shape[1:]).astype(bool).sum())
                branches.append(_Branch(steps, flop_of(programs(equation)[1])))
        else:
            _evaluate(equation, known, places)
    return branches


def _value(variable: Any, known: dict[Any, Any]) -> Any:
    """Returns an operand's numbers in all steps, None where they are not known."""
    return variable.val if hasattr(variable, "val") else known.get(variable)


def _evaluate(equation: Any, known: dict[Any, Any], places: np.ndarray) -> None:
    """Adds the results of an equation of scalars, in all steps, where its operands are known."""
    name, params = equation.primitive.name, equation.params
    if name == "program_id":
        known[equation.outvars[0]] = places[params["axis"]].astype(np.int32)
        return
    operands = [_value(variable, known) for variable in equation.invars]
    scalars = all(getattr(output.aval, "shape", None) == () for output in equation.outvars)
    if not scalars or any(operand is None for operand in operands):
        return
    inner = programs(equation)
    if name in ("jit", "pjit") and inner:
        local = dict(zip(inner[0].invars, operands, strict=True))
        for part in inner[0].eqns:
            _evaluate(part, local, places)
        results = [_value(variable, local) for variable in inner[0].outvars]
    elif inner or not operands:
        return
    elif name == "get":
        results = [operands[0][operands[1]]]
    else:
        whole = [np.broadcast_to(operand, places.shape[1:]) for operand in operands]
        result = equation.primitive.bind(*whole, **params)
        results = result if equation.primitive.multiple_results else [result]
    for variable, result in zip(equation.outvars, results, strict=True):
        if result is not None:
            known[variable] = np.asarray(result)


def pallas_calls(jaxpr: Any) -> Iterator[dict[str, Any]]:
    """Yields what each kernel of a traced program was called with."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation.params
        for program in programs(equation):
            yield from pallas_calls(program)


def flop_of(jaxpr: Any) -> float:
    """Returns the FLOP of a traced program's matrix products and convolutions, all devices'.

    Loops count as often as they run, and of a condition's branches the larger one counts. What a
    compiler merges or computes twice is not known here.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(shape[d] for d in contracted)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            outputs = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * equation.outvars[0].aval.size * kernel.size / outputs
        elif name == "cond":
            total += max(map(flop_of, programs(equation)))
        else:
            times = 1.0
            if name == "scan":
                times = params["length"]
            elif name == "pallas_call":
                times = math.prod(params["grid_mapping"].grid)
            elif name == "shard_map":
                times = params["mesh"].size
            total += times * sum(map(flop_of, programs(equation)))
    return total


def programs(equation: Any) -> list[Any]:
    """Returns the programs in an equation's parameters, alone or in tuples."""
    inner = []
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            program = getattr(part, "jaxpr", part)
            if hasattr(program, "eqns"):
                inner.append(program)
    return inner
