"""A snapshot of the code in the study's directory: what was submitted is what runs, also later.

`<study>/code/<hash>/` holds the four packages as they were, and the Python files of modules that a
study's workload needs beside them; a job in a queue, a requeued job and a
restarted one import them from there, whatever is edited in the checkout meanwhile. Each attempt
records the commit and the hash in meta_data_<k>.json.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterable

from attention.common import checkout, files
from sweeps.records import layout, provenance

CODE, RECORD = "code", "code.json"
_HERE = pathlib.Path(__file__).resolve().parents[2]


def take(study_directory: pathlib.Path, modules: Iterable[str] = ()) -> pathlib.Path:
    """Returns the folder with the running code's snapshot, made where it is not there yet.

    modules: names of modules of a user, MODULE or MODULE:OBJECT, whose top-level module or package
    is kept as well.
    Code that runs from a snapshot of this study is its own snapshot.
    """
    folder = study_directory.resolve() / CODE
    if _HERE.parent == folder:
        return _HERE
    paths = _files(modules)
    name = layout.digest({name: files.sha256(path) for name, path in paths.items()})[:12]
    if (folder / name).is_dir():
        return folder / name
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as temporary:
        draft = pathlib.Path(temporary, name)
        for relative, path in paths.items():
            (draft / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, draft / relative)
        layout.write_json(draft / RECORD, {"sha256": name, "git_commit": provenance.git_commit()})
        try:
            draft.rename(folder / name)
        except OSError:
            if not (folder / name).is_dir():  # another driver may have been first
                raise
    return folder / name


def _files(modules: Iterable[str]) -> dict[str, pathlib.Path]:
    """Returns the files of a snapshot by their paths in it; of other modules Python alone."""
    places = [_HERE / package for package in checkout.PACKAGES]
    for module in sorted({re.split("[.:]", name)[0] for name in modules} - {*checkout.PACKAGES}):
        if spec := importlib.util.find_spec(module):
            origins = spec.submodule_search_locations or [spec.origin or ""]
            places += [pathlib.Path(origin) for origin in origins]
    return {
        str(path.relative_to(place.parent)): path
        for place in places
        for path in sorted([place, *place.rglob("*")])
        if path.is_file()
        and (path.suffix == ".py" or (place.name in checkout.PACKAGES and path.suffix != ".pyc"))
    }


def environment(snapshot: pathlib.Path) -> dict[str, str]:
    """Returns what makes Python import the snapshot, wherever a process is started.

    Raises ValueError for a directory that Python cannot import from.
    """
    if os.pathsep in str(snapshot):
        raise ValueError(
            f"{snapshot}: Python imports from no directory with {os.pathsep!r} in its path; choose "
            "another --config.experiment_dir or --config.name"
        )
    # Without PYTHONSAFEPATH, `python -m` would put the current folder first.
    return {"PYTHONPATH": str(snapshot), "PYTHONSAFEPATH": "1"}
