"""What the public tree lacks: found, told apart from another tree's, filled in."""

import sys

import pytest

from tests.init2winit import tiny_data
from workloads.algoperf.preflight import Request
from workloads.init2winit import installation, missing_symbols, runner


def test_the_checkout_has_the_gaps(tree):
    missing_symbols.check(tree.directory)
    if str(tree.revision) == installation.TESTED_COMMIT:
        assert tree.remark is None


@pytest.mark.parametrize(
    ("file", "before", "after", "words"),
    [
        ("main.py", "CNS_LOGS_ENCODING", '"cns"', "main.py has no CNS_LOGS_ENCODING.*checkout afd"),
        ("dataset_lib/wikitext2_input_pipeline.py", "DATA_DIR", "HOME", "wikitext2.* no DATA_DIR"),
        ("trainer_lib/base_trainer.py", "Cns2", "Cns3", "base_trainer.py has no Cns2Storage"),
        (
            "utils.py",
            "self.appended.append",
            "_read_and_write_csv(), self.appended.append",
            "utils.py calls _read_and_write_csv",
        ),
    ],
)
def test_a_tree_with_other_gaps_is_refused(stand_in, file, before, after, words):
    """Before its flags, which another commit may have others of, and before it is imported."""
    path = stand_in.directory / "init2winit" / file
    path.write_text(path.read_text("utf-8").replace(before, after))
    request = Request("laser", None, ("--model=vit", "--dataset=mnist"))
    with pytest.raises(ValueError, match=words):
        runner.run(request, str(stand_in.directory))


def test_a_raising_module_is_imported_inherited_from_and_never_used():
    module = missing_symbols.RaisingModule("grain.tensorflow")
    inherited = type("Mixup", (module.MapTransform,), {})
    with pytest.raises(RuntimeError, match="grain.tensorflow.MapTransform is not published"):
        inherited(1)
    made = missing_symbols.RaisingModule("lingvo", made=True).DotProductAttention(num_heads=2)
    with pytest.raises(RuntimeError, match="lingvo.DotProductAttention"):
        made("queries")


@pytest.mark.usefixtures("tensorflow")
def test_a_module_that_is_installed_is_not_replaced(stand_in, tmp_path, monkeypatch):
    (tmp_path / "libraries/vizier").mkdir(parents=True)
    (tmp_path / "libraries/vizier/pyvizier.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    stand_in.activate()
    missing_symbols.fill_modules(stand_in.directory, None)
    assert "vizier.pyvizier" not in sys.modules  # where a raising one would be
    del sys.modules["vizier"]


@pytest.mark.slow  # reads all of Python's documentation
def test_tiny_text_is_in_words_of_the_training_text(tmp_path):
    folder = tiny_data.prepare(tmp_path, "wikitext103")
    words = {
        name: (folder / f"{name}.txt").read_text("utf-8").split()
        for name in ("train", "valid", "test")
    }
    assert len(set(words["train"])) == tiny_data.WORDS + 1  # and <unk>
    assert set(words["valid"]) | set(words["test"]) <= set(words["train"])
    assert "<unk>" in words["valid"]
    before = (folder / "train.txt").read_bytes()
    assert tiny_data.prepare(tmp_path, "wikitext103") == folder
    assert (folder / "train.txt").read_bytes() == before


def test_tiny_digits_are_read_as_mnist(tmp_path):
    from workloads.storage import tfds_directory

    folder = tiny_data.prepare(tmp_path, "mnist")
    splits = {
        name: tfds_directory.TfdsSplit(folder / "mnist/3.0.1", name) for name in ("train", "test")
    }
    assert len(splits["train"]) == 1397
    assert len(splits["test"]) == 400
    assert splits["train"][0]["label"] in range(10)
