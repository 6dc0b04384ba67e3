"""What the public tree lacks: found, told apart from another tree's, filled in."""

import sys

import pytest

from workloads.init2winit import installation, missing_symbols, preflight, runner, tiny_data


def test_names_that_nothing_defines_are_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import os\n"
        "HERE = os.sep\n"
        "def one(a, *b, c=HERE):\n"
        "    global LATER\n"
        "    LATER = [x for x in range(a)]\n"
        "    return missing, a, b, c, len(LATER), __name__\n"
        "class Two:\n"
        "    own = default\n"
        "    def three(self):\n"
        "        return self.own, Two, absent.part\n"
        "def four():\n"
        "    return LATER\n"
        "LATER = None\n"
    )
    assert missing_symbols.undefined(path) == {"missing", "default", "absent"}


def test_the_stand_in_has_the_gaps_of_the_tested_commit(stand_in):
    missing_symbols.check(stand_in.directory)


def test_the_checkout_has_them_too(tree):
    missing_symbols.check(tree.directory)
    if str(tree.revision) == installation.TESTED_COMMIT:
        assert tree.remark is None


def _replace(path, before, after):
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_tree_that_lacks_other_things_is_refused(stand_in):
    root = stand_in.directory
    lingvo = root / "init2winit/model_lib/lingvo_attention.py"
    lingvo.write_text("")
    with pytest.raises(ValueError, match=r"it has init2winit/model_lib/lingvo_att.*checkout afd5a"):
        missing_symbols.check(root)
    lingvo.unlink()
    main = root / "init2winit/main.py"
    _replace(main, "CNS_LOGS_ENCODING", '"cns"')
    with pytest.raises(ValueError, match=r"main.py leaves app, experiment_dir, worker_id undef"):
        missing_symbols.check(root)
    _replace(main, '"cns"', "CNS_LOGS_ENCODING")
    _replace(main, "hps.rng_seed", "unheard_of")
    with pytest.raises(ValueError, match="unheard_of"):
        missing_symbols.check(root)
    _replace(main, "unheard_of", "hps.rng_seed")
    utils = root / "init2winit/utils.py"
    _replace(utils, "self.appended.append", "_read_and_write_csv(), self.appended.append")
    with pytest.raises(ValueError, match="does not leave its _read_and_write_csv uncalled"):
        missing_symbols.check(root)


def test_an_older_tree_is_refused_as_such_whatever_its_flags(stand_in):
    """Flags that the tested commit lacks are those that an older one has."""
    _replace(stand_in.directory / "init2winit/main.py", "CNS_LOGS_ENCODING", '"cns"')
    request = preflight.Request("laser", None, None, ("--model=vit", "--dataset=mnist"))
    with pytest.raises(ValueError, match="lacks other things than the tested commit afd5a84"):
        runner.run(request, str(stand_in.directory))


def test_a_stand_in_is_imported_inherited_from_and_never_used():
    module = missing_symbols.RaisingModule("grain.tensorflow")
    inherited = type("Mixup", (module.MapTransform,), {})
    with pytest.raises(RuntimeError, match="grain.tensorflow.MapTransform is not published"):
        inherited(1)
    made = missing_symbols.RaisingModule("lingvo", made=True).DotProductAttention(num_heads=2)
    with pytest.raises(RuntimeError, match="lingvo.DotProductAttention"):
        made("queries")
    with pytest.raises(AttributeError):
        _ = module.__file__


def test_what_is_there_is_not_stood_in_for(stand_in, tensorflow):
    del tensorflow
    sys.path.insert(0, str(stand_in.directory))
    there = stand_in.directory / "vizier"
    there.mkdir()
    (there / "__init__.py").write_text("")
    (there / "pyvizier.py").write_text("REAL = True")
    missing_symbols.fill_modules(stand_in.directory, None)
    from vizier import pyvizier

    assert pyvizier.REAL
    for name in ("vizier", "vizier.pyvizier"):
        del sys.modules[name]


def test_its_own_function_writes_the_measurements():
    class Logger:
        def __init__(self):
            self.written = []

        def append_scalar_metrics(self, metrics):
            def _read_and_write_csv():
                self.written.append(dict(metrics))

            metrics["global_step"] = int(metrics["global_step"])

    Logger.append_scalar_metrics = missing_symbols.with_own_writer(Logger.append_scalar_metrics)
    logger = Logger()
    logger.append_scalar_metrics({"global_step": 3.0, "cost": 1.5})
    assert logger.written == [{"global_step": 3, "cost": 1.5}]


def test_tiny_data_is_for_three_data_sets_and_replaces_no_other(tmp_path):
    with pytest.raises(ValueError, match="for mnist, wikitext103, librispeech it can"):
        tiny_data.prepare(tmp_path, "imagenet")
    other = tmp_path / "wikitext103"
    other.mkdir()
    (other / "train.txt").touch()
    with pytest.raises(ValueError, match="is of other data"):
        tiny_data.prepare(tmp_path, "wikitext103")


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
