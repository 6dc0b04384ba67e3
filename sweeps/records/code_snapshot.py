"""A snapshot of the code in the study's directory: what was submitted is what runs, also later.

`<study>/code/<hash>/` holds the four packages as they were; a job in a queue, a requeued job and a
restarted one import them from there, whatever is edited in the checkout meanwhile. Each attempt
records the commit and the hash in meta_data_<k>.json.
"""

import hashlib
import os
import pathlib
import shutil
import tempfile

from attention import checkout
from sweeps.records import layout, provenance

CODE, RECORD = "code", "code.json"
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")
_HERE = pathlib.Path(__file__).resolve().parents[2]


def take(study_directory: pathlib.Path) -> pathlib.Path:
    """Returns the folder with the running code's snapshot, made where it is not there yet.

    Code that runs from a snapshot of this study is its own snapshot.
    """
    folder = study_directory.resolve() / CODE
    if _HERE.parent == folder:
        return _HERE
    name = digest(_HERE)[:12]
    if (folder / name).is_dir():
        return folder / name
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as temporary:
        draft = pathlib.Path(temporary, name)
        for package in checkout.ROOMS:
            shutil.copytree(_HERE / package, draft / package, ignore=_SKIPPED)
        record = {"sha256": name, "git_commit": provenance.git_commit()}
        layout.write_json(draft / RECORD, record)
        try:
            draft.rename(folder / name)
        except OSError:
            if not (folder / name).is_dir():  # another driver may have been first
                raise
    return folder / name


def digest(root: pathlib.Path) -> str:
    """Returns the SHA-256 of the four packages below `root`: names and contents of all files."""
    content = hashlib.sha256()
    for package in checkout.ROOMS:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                for part in (str(path.relative_to(root)).encode(), path.read_bytes()):
                    content.update(b"%d:%b" % (len(part), part))
    return content.hexdigest()


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
