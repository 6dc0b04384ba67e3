"""`python -m analysis`: refuses a mixture of two checkouts, then runs the command line."""

import pathlib
import sys


def _stranger(package: str) -> str | None:
    """Returns where `package` comes from, if not from beside this one."""
    import importlib.util

    home = pathlib.Path(__file__).resolve().parent.parent
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or []) if found else []
    if [pathlib.Path(place).resolve() for place in places] == [(home / package).resolve()]:
        return None
    return ", ".join(places) or (found.origin if found and found.origin else "nowhere")


def _main() -> int:
    if stranger := _stranger("sweeps"):
        home = pathlib.Path(__file__).resolve().parent
        print(
            f"python -m analysis: analysis is {home}, but sweeps is {stranger}; run it from one "
            "checkout, or take the other off PYTHONPATH",
            file=sys.stderr,
        )
        return 2
    from analysis.commands import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
