"""Studies that earlier code left: read, planned, resumed under their own ids, with its numbers."""

import json
import pathlib
import tarfile

import pytest

from analysis.load.studies import read_study
from sweeps.job import trainer
from sweeps.records import layout, lease, measurements, provenance, status
from sweeps.records.study_reader import StudyReader
from sweeps.study import study, study_directory, trial
from tests.sweeps.chaos import equality

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
IDS = {
    "tune/standard/digits_vit_jax/trial_1": "ec76c9e7d27a5f79",
    "tune/standard/digits_vit_jax/trial_1001": "27db516312e210b6",
    "compare/standard/digits_vit_jax/trial_1": "ec76c9e7d27a5f79",
    "compare/laser/digits_vit_jax/trial_1": "b813a8c772935497",
}
INTERRUPTED = "compare/laser/digits_vit_jax/trial_1"


def _unpacked(name, folder):
    """Returns a study's directory below a folder."""
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder / name


@pytest.fixture
def earlier(tmp_path):
    """A study of before ids had a schema."""
    return _unpacked("before_schema_2", tmp_path)


def _go_on(directory, data_dir="", **mesh):
    """Does what a driver does before it hands trials out; returns the trials."""
    record = layout.read_json(directory / layout.STUDY)
    record["config"]["mesh"] |= mesh
    record["config"]["data_dir"] = data_dir
    resumed = study.from_record(record, directory)
    study_directory.prepare(resumed)
    tune = study_directory.materialise(resumed, "tune", resumed.trials("tune"))
    selection = study_directory.select(resumed)
    compare = resumed.trials("compare", selection)
    return [*tune, *study_directory.materialise(resumed, "compare", compare)]


def _contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_ids_of_before_are_kept_and_the_mesh_may_change(earlier):
    before = {path: layout.read_json(earlier / path / layout.TRIAL) for path in IDS}
    assert {path: record["id"] for path, record in before.items()} == IDS
    assert all("schema" not in record for record in before.values())
    files = _contents(earlier / "tune")
    selection = layout.read_json(earlier / layout.SELECTION)["points"]
    trials = _go_on(earlier, data=0)
    assert {one.path: one.id for one in trials} == IDS
    rows = [*_rows(earlier, "tune"), *_rows(earlier, "compare")]
    assert {row["path"]: row["id"] for row in rows} == IDS
    assert layout.read_json(earlier / layout.SELECTION)["points"] == selection
    # What is done stays as it was; what is not takes the mesh over and keeps its id.
    after = _contents(earlier / "tune")
    assert {path for path in files if files[path] != after[path]} == {earlier / "tune/trials.json"}
    for path in IDS:
        again = trial.read(earlier / path)
        mesh = (0, 1, 1) if path == INTERRUPTED else (1, 1, 1)
        assert (again.id, again.schema, again.mesh) == (IDS[path], 1, mesh)
    # And back: the id is still that of the mesh it was made with.
    trials = _go_on(earlier, data=1)
    assert {one.path: one.id for one in trials} == IDS


def _rows(directory, stage):
    return layout.read_json(directory / stage / layout.TRIALS)["trials"]


@pytest.mark.slow
def test_it_is_resumed_to_the_end_without_a_repeated_trial(earlier, data_dir):
    trials = _go_on(earlier, data_dir)
    trains = trainer.Trainer()
    for one in trials:
        trains.run(earlier / one.path, data_dir)
    assert {path: lease.latest(earlier / path) for path in IDS} == {
        path: 1 + (path == INTERRUPTED) for path in IDS
    }
    second = earlier / INTERRUPTED / layout.ATTEMPTS / "2"
    assert layout.read_json(second / measurements.RESUMED) == {"global_step": 2}
    found = status.read(earlier / INTERRUPTED)
    assert (found["state"], found["id"], found["global_step"]) == ("done", IDS[INTERRUPTED], 6)
    assert StudyReader(earlier).look().complete
    read = read_study(earlier)
    assert not read.problems
    assert [(run.state, run.last_step, run.problems) for run in read.runs] == [("done", 6, ())] * 4


REDESIGN_IDS = {
    "tune/standard/digits_vit_jax/trial_1": "3ceee1f7159c0f44",
    "tune/standard/digits_vit_jax/trial_1001": "0a46fc751316baf5",
    "compare/standard/digits_vit_jax/trial_1": "3ceee1f7159c0f44",
    "compare/laser/digits_vit_jax/trial_1": "bb059e16f35d0976",
    "compare/laser+temp/digits_vit_jax/trial_1": "7bad7cf1e8d1df6b",
}


@pytest.mark.slow
def test_a_study_of_before_the_redesign_ends_with_the_numbers_of_before(tmp_path, data_dir):
    """Its killed trial goes on from its checkpoint, the next one begins; bit for bit where both
    ran on the same hardware and libraries."""
    earlier = _unpacked("before_redesign", tmp_path)
    trials = _go_on(earlier, data_dir)
    assert {one.path: one.id for one in trials} == REDESIGN_IDS
    trains = trainer.Trainer()
    for one in trials:
        trains.run(earlier / one.path, data_dir)
    assert StudyReader(earlier).look().complete
    second = earlier / INTERRUPTED / layout.ATTEMPTS / "2"
    assert layout.read_json(second / measurements.RESUMED) == {"global_step": 1}
    then = layout.read_json(earlier / INTERRUPTED / layout.TRIAL)["hardware"]
    here = {**provenance.hardware(), "versions": provenance.versions()}
    same = {**then, "os_platform": here["os_platform"]} == here
    for path in trials[-2].path, trials[-1].path:
        expected = equality.rows(FIXTURES / "before_redesign", f"{path.split('/')[1]}.csv")
        measured = equality.rows(earlier / path, layout.MEASUREMENTS)
        if not same:
            expected, measured = (_losses(rows) for rows in (expected, measured))
            expected = pytest.approx(expected, rel=1e-4)
        assert measured == expected, path


def _losses(rows):
    return [float(row[name]) for row in rows for name in ("loss", "validation/loss") if row[name]]


@pytest.mark.parametrize("change", [{"seed": 3}, {"mesh": [2, 1, 1]}, {"steps": 7}])
def test_an_edited_record_of_before_is_still_found_out(earlier, change):
    path = earlier / INTERRUPTED / layout.TRIAL
    path.write_text(json.dumps(layout.read_json(path) | change))
    with pytest.raises(ValueError, match="does not belong to its content"):
        trial.read(path.parent)
