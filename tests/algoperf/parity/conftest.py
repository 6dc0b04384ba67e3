"""The table of parity below a run's tests: `make parity`."""

import importlib.metadata

import pytest

from workloads.algoperf import installation

# Libraries that the numbers may depend on.
_LIBRARIES = ("jax", "flax", "optax", "numpy")


@pytest.fixture
def check(record_property):
    """A function that fails where a row exceeds its tolerance; every row gets into the table."""

    def checked(rows):
        failed = []
        for row in rows:
            record_property("row", str(row))
            failed += [] if row.passed else [row]
        assert failed == []

    return checked


def pytest_terminal_summary(terminalreporter):
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [text for report in reports for name, text in report.user_properties if name == "row"]
    if rows:
        versions = (f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES)
        terminalreporter.write_line(f"{installation.find()}; {', '.join(versions)}\n")
        terminalreporter.write_line("| subject | quantity | difference | tolerance | |")
        terminalreporter.write_line("|---|---|--:|--:|---|")
        terminalreporter.write_line("\n".join(rows))
