"""What this room raises when the data on disk is not what a workload needs."""


class DataError(ValueError):
    """Data is missing, half prepared, damaged, or of another data set.

    The message names the directory and the file, what was found and what was expected, and ends
    with the command that repairs it. It holds text only, so it survives the way from a worker
    process.
    """

    def __init__(self, problem: str, repair: str = "") -> None:
        super().__init__(f"{problem}\nTo repair: {repair}" if repair else problem)
