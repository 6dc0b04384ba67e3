"""`python -m analysis`: refuses a mixture of two checkouts, then runs the command line."""

import pathlib
import runpy
import sys

if __name__ == "__main__":
    door = pathlib.Path(__file__).parents[1] / "attention" / "common" / "checkout.py"
    runpy.run_path(str(door))["start"]("analysis")
    from analysis.cli import main

    sys.exit(main())
