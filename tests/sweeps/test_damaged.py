"""Files of a study cut short or corrupted: named by every command, never a bare traceback."""

import shutil

import pytest

from analysis import cli
from sweeps import __main__ as sweeps
from sweeps.records import attempts, layout, lease, measurements
from tests.sweeps.chaos import equality
from tests.sweeps.chaos.damage import damage

pytestmark = pytest.mark.slow

TRIAL = "grid/standard/digits_vit_jax/trial_1"
ATTEMPT = f"{TRIAL}/{layout.ATTEMPTS}/1"


@pytest.fixture
def finished(drivers, undisturbed):
    """A study that is done, to damage: a copy."""
    shutil.copytree(undisturbed, drivers.study)
    return drivers


def _call(main, arguments, capsys):
    """Returns a command's exit code and everything that it printed."""
    code = main([*map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.mark.parametrize("kind", ["cut", "garbled"])
@pytest.mark.parametrize(
    ("name", "status_code", "table_code"),
    [
        (layout.STUDY, 2, 2),
        (f"grid/{layout.TRIALS}", 3, 0),
        (f"{TRIAL}/{layout.TRIAL}", 0, 0),
        (f"{TRIAL}/{layout.STATUS}", 3, 0),
        (f"{TRIAL}/{layout.EVAL_MEASUREMENTS}", 0, 0),
        (f"{TRIAL}/{layout.MEASUREMENTS}", 0, 0),
    ],
)
def test_status_and_table_name_what_is_damaged(
    finished, capsys, kind, name, status_code, table_code
):
    """Without a word only where a command does not read the file."""
    damage(finished.study / name, kind)
    code, shown = _call(sweeps.main, ["status", finished.study], capsys)
    assert code == status_code, shown
    reads = name in (layout.STUDY, f"grid/{layout.TRIALS}", f"{TRIAL}/{layout.STATUS}")
    assert (str(finished.study / name) in shown) == reads, shown
    code, shown = _call(cli.main, ["table", finished.study], capsys)
    assert code == table_code, shown
    file = name.rsplit("/", 1)[-1]
    named = file in shown or "elsewhere: " in shown
    assert named or file == layout.MEASUREMENTS  # which is not read for a table
    _, listed = _call(cli.main, ["runs", finished.study], capsys)
    assert file in listed
    assert "trial_1/" in listed or TRIAL not in name
    assert "Traceback" not in shown + listed


@pytest.mark.parametrize("kind", ["cut", "garbled"])
def test_run_repairs_what_can_be_told_from_other_files(finished, undisturbed, kind):
    """Status, lease, list of trials, CSVs: checkpoints, config and attempts speak for them."""
    for name in (f"{TRIAL}/{layout.STATUS}", f"grid/{layout.TRIALS}", f"{ATTEMPT}/{lease.LEASE}"):
        damage(finished.study / name, kind)
    for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
        damage(finished.trial(1) / name, kind)
    (finished.study / ATTEMPT / lease.OUTCOME).unlink()
    output = finished.finish(finished.run())
    assert "4 done" in output
    assert lease.latest(finished.trial(0)) == 2
    assert equality.problems(finished.study, undisturbed) == []


@pytest.mark.parametrize("kind", ["cut", "garbled"])
@pytest.mark.parametrize("name", [layout.STUDY, f"{TRIAL}/{layout.TRIAL}"])
def test_run_refuses_what_it_must_not_guess(finished, kind, name):
    """Identity of the study and of a trial: the file is named, and nothing begins."""
    damage(finished.study / name, kind)
    for command in ("run", "resume"):
        output = finished.finish(finished.run(command=command), 2)
        assert f"{finished.study / name}: " in output
        assert "Traceback" not in output


@pytest.mark.parametrize("content", ["{}", "[]", '{"pid": 1}'])
def test_lease_that_is_none_holds_nothing(tmp_path, content):
    first = lease.claim(tmp_path)
    (first.directory / lease.LEASE).write_text(content)
    assert not lease.is_alive(first.directory)
    assert lease.claim(tmp_path).number == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"outcome": "do', "\0\0"])
def test_outcome_that_is_none_counts_as_killed(tmp_path, content):
    """How an attempt ended is not known then; that it ended is."""
    first = lease.claim(tmp_path)
    (first.directory / lease.OUTCOME).write_text(content)
    assert attempts.count_failures(attempts.ends(tmp_path)) == (0, 1)
    assert attempts.last_error(tmp_path)["outcome"] == "killed"
    assert lease.claim(tmp_path).number == 2


def test_damaged_measurements_are_computed_again(finished, undisturbed, worker, one_core):
    directory = finished.trial(0)
    path = directory / layout.ATTEMPTS / "1" / measurements.FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"}{\n"]))  # the evaluation after 12 updates
    (directory / layout.STATUS).unlink()
    assert worker(directory, one_core).end()[0] == "done"
    log = (directory / layout.ATTEMPTS / "2" / attempts.LOG).read_text()
    assert f"checkpoint 12 is set aside: {path} has " in log
    assert equality.problems(finished.study, undisturbed) == [f"{TRIAL}: completed by 2 attempts"]
