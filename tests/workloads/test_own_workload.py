"""docs/extending.md's recipe for a workload, word for word: a module outside of the packages."""

import os
import re
import subprocess
import sys

import pytest

from sweeps import __main__ as sweeps
from sweeps.records import code_snapshot
from sweeps.study import config, study
from tests.floor_plan import ROOT
from workloads import __main__ as commands
from workloads import catalog, registry

SECTION = (ROOT / "docs/extending.md").read_text("utf-8").partition("## A workload\n")[2]
MODULE = re.search(r"^```python\n# wine.py\n(.*?)^```", SECTION, re.S | re.M)[1]
COMMANDS = re.search(r"^```bash\n(.*?)^```", SECTION, re.S | re.M)[1]
NAME = "wine:wine_vit"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that makes the recipe's module, with changes, importable in tmp_path."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ATTNPERF_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def written(*changes, name="wine"):
        text = MODULE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield written
    sys.modules.pop("wine", None)


def test_the_recipe_is_prepared_checked_listed_and_planned(write, tmp_path, capsys):
    write()
    assert commands.main(["prepare", NAME]) == 0
    assert (tmp_path / "data/wine/wine_vit/reference.json").exists()
    assert commands.main(["check", NAME]) == 0
    lines = capsys.readouterr().out
    assert "98 examples" in lines
    assert "model: 19,875 parameters" in lines
    assert commands.main(["list", "wine"]) == 0
    assert NAME in capsys.readouterr().out
    overrides = ["--config=digits_vit_quick", f"--config.workload={NAME}", "--config.name=wine"]
    assert sweeps.main(["plan", *overrides]) == 0
    printed = capsys.readouterr()
    assert "19,875 parameters" in printed.out
    assert "refuse" not in printed.err
    write(('"patch_size"', '"patch"'))
    assert sweeps.main(["plan", *overrides]) == 0
    assert "run would refuse this: workload 'wine:wine_vit'" in capsys.readouterr().err
    assert sweeps.main(["run", *overrides]) == 2
    assert not (tmp_path / "experiments").exists()
    # Data that was damaged is not what was prepared.
    write()
    reference = tmp_path / "data/wine/wine_vit/reference.json"
    reference.write_text(reference.read_text("utf-8").replace('"sha256": "', '"sha256": "0'))
    assert commands.main(["check", NAME]) == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('data="wine:WINE"', 'data="wine:VINE"'), "VINE"),
        (("image_workload:make", "image_workload:maker"), "maker"),
        (("    model={", "    topology={"), "mapping"),
        (('"patch_size"', '"patch"'), "patch"),
        (('data="wine:WINE"', 'data="wine:SIZES"'), "image_size"),
        (("19_875", "0"), "19,875"),
        (("WORKLOADS =", "OTHERS ="), "WORKLOADS"),
        (('{"wine_vit": wine_vit}', "[wine_vit]"), "WORKLOADS"),
        (('{"wine_vit": wine_vit}', '{"wine_vit": 7}'), "WORKLOADS"),
        (('{"wine_vit": wine_vit}', '{"wine": wine_vit}'), "wine:wine"),
        (("SIZES = {", "SIZES = {{"), "SyntaxError"),
        (("import cv2", "import cv3"), "cv3"),
    ],
)
def test_a_row_that_is_wrong_is_refused_by_name(write, change, named):
    write(change)
    with pytest.raises(ValueError, match=f"wine.*({named})"):
        registry.check_model(NAME)


@pytest.mark.parametrize("name", ["digits_vit", "spoken_digits_conformer", "pydoc_bert"])
def test_every_small_workload_is_one_row_under_any_name(name, write):
    """Of images, speech and text: nothing but the row says what its model and data are."""
    write((MODULE, f"from workloads import catalog\nWORKLOADS = {{'own': catalog.get({name!r})}}"))
    assert f"{catalog.get(name).parameters:,}" in registry.check_model("wine:own")
    data = catalog.get("wine:own").data
    write(
        (
            MODULE,
            f"""
import dataclasses
from workloads import catalog
WORKLOADS = {{'own': dataclasses.replace(catalog.get({name!r}), data='workloads:catalog')}}
""",
        )
    )
    assert callable(catalog.resolve(name, data).check)
    for ask, row in (
        (catalog.data_module, "wine:own"),
        (catalog.get, "./wine.py:wine_vit"),
        (catalog.get, "my wine:wine_vit"),
        (catalog.get, "wines:wine_vit"),
    ):
        with pytest.raises(ValueError, match="wine:own" if row == "wine:own" else "PYTHONPATH"):
            ask(row)


def test_a_trial_is_of_its_row_and_its_code_is_kept(write, tmp_path):
    write()
    overrides = [f"--config.workload={NAME}", "--config.seeds=1"]

    def trial():
        return study.resolve(config.parse("digits_vit_quick", overrides)).trials("grid")[0]

    first = trial()
    assert first.path.endswith("/wine_vit_jax/trial_1")
    write(("import cv2", "import cv2  # a comment"))
    assert trial().id == first.id
    write(('"depth": 2', '"depth": 3'))
    assert trial().id != first.id
    # Elsewhere its module is not found; the study is not damaged.
    settings = config.parse("digits_vit_quick", overrides).to_dict()
    with pytest.raises(ValueError, match="^module 'wines'"):
        study.from_record(
            {"config": {**settings, "workload": "wines:x"}}, tmp_path / "digits_vit_quick"
        )
    (tmp_path / "study").mkdir()
    for modules in ((NAME, "workloads.images:make"), ()):
        kept = code_snapshot.take(tmp_path / "study", modules)
        assert (kept / "wine.py").exists() == bool(modules)
        assert (kept / "sweeps/spaces").is_dir()


@pytest.mark.nightly
def test_the_recipe_s_commands_run(write, tmp_path):
    """With four steps instead of a hundred; then the study goes on from where it was."""
    write()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ATTNPERF_CACHE": str(tmp_path)}
    lines = re.sub(r" +#.*", "", COMMANDS).splitlines()
    few = "--config.steps=4 --config.eval_every=2 --config.points=1"
    lines = [f"{line} {few}" if "sweeps run" in line else line for line in lines]
    assert [line.split()[3] for line in lines] == ["prepare", "check", "run", "table"]
    for line in (*lines, "python -m sweeps resume experiments/wine"):
        ran = subprocess.run(
            [sys.executable, *line.split()[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{line}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        if "table" in line:
            assert "LASER" in ran.stdout
            assert "178 wines" in ran.stdout
