"""`python -m analysis`: refuses a mixture of two checkouts, then runs the command line."""

import sys

from attention import checkout


def _main() -> int:
    try:
        checkout.check()
    except ValueError as error:
        print(f"python -m analysis: {error}", file=sys.stderr)
        return 2
    from analysis.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
