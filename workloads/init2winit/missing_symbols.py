"""What the public tree of init2winit lacks, and what stands in its place.

Its public copy leaves out modules, names and one call that exist inside of Google. Each is filled
in, in memory, by an alias (a name for what is published elsewhere), by something that raises when
it is used, or by a call of its own published code; nothing that computes is made here. `TABLE` says
which, and the command prints it. `check` refuses a tree that has not these gaps: another commit may
have others.
"""

import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_LIB = "init2winit/dataset_lib"
_WRITER = "_read_and_write_csv"


class MissingSymbol(NamedTuple):
    """`missing`: what is not there; `kind`: alias, raises or call; `instead`: its replacement."""

    missing: str
    kind: str
    instead: str


TABLE: tuple[MissingSymbol, ...] = (
    MissingSymbol(
        "init2winit.hessian", "alias", "the folder hessian/, published beside the package"
    ),
    MissingSymbol(
        "init2winit.model_lib.lingvo_attention",
        "raises",
        "used by the Conformers with use_lingvo_attention=True alone",
    ),
    MissingSymbol(
        "grain.tensorflow, grain._src.tensorflow",
        "raises",
        "in no grain on PyPI; used by the data set imagenet with use_grain=True alone",
    ),
    MissingSymbol(
        "tensorflow.contrib",
        "raises",
        "TensorFlow 1's; used by AutoAugment and RandAugment of the data set imagenet alone",
    ),
    MissingSymbol("vizier.pyvizier", "raises", "imported by main.py, used nowhere"),
    MissingSymbol(
        "SPM_TOKENIZER_VOCAB_PATH of dataset_lib/wikitext103_input_pipeline.py",
        "alias",
        "None: give the hyperparameter tokenizer_vocab_path",
    ),
    MissingSymbol(
        "DATA_DIR of wikitext2, wikitext103 and fineweb_edu_10b",
        "alias",
        "the directory of --data_dir",
    ),
    MissingSymbol(
        "experiment_dir, worker_id, CNS_LOGS_ENCODING, makedirs(mode=) of main.py",
        "alias",
        "its flag --experiment_dir, the flag --worker_id that it had until March 2026, no folder, "
        "os.makedirs",
    ),
    MissingSymbol(
        "orbax.checkpoint.options.Cns2StorageOptions",
        "alias",
        "where files lie in Google's own file system: left out of its checkpoints' options",
    ),
    MissingSymbol(
        "the call of _read_and_write_csv in utils.py: MetricLogger.append_scalar_metrics",
        "call",
        "its own function, published and called until April 2026, writes measurements.csv",
    ),
    MissingSymbol(
        "gfile.FileError", "alias", "tensorflow.errors.NotFoundError, which tf.io.gfile raises"
    ),
)

_LINGVO = "init2winit.model_lib.lingvo_attention"
# Modules that are not published or whose last version no Python of today has.
_RAISING = (
    _LINGVO,
    "grain.tensorflow",
    "grain._src.tensorflow",
    "grain._src.tensorflow.transforms",
    "tensorflow.contrib",
    "vizier",
    "vizier.pyvizier",
)
# Names that data sets' files use and nothing defines.
_DATA_SETS = {
    f"{_LIB}/wikitext103_input_pipeline.py": ("SPM_TOKENIZER_VOCAB_PATH", "DATA_DIR"),
    f"{_LIB}/wikitext2_input_pipeline.py": ("DATA_DIR",),
    f"{_LIB}/fineweb_edu_10b_input_pipeline.py": ("DATA_DIR",),
}
_ORBAX_USERS = ("init2winit/trainer_lib/base_trainer.py", "init2winit/utils.py")
# What each file has in a tree of these gaps. The last one is defined there and not called.
_EXPECTED = (
    *_DATA_SETS.items(),
    ("init2winit/main.py", ("experiment_dir", "worker_id", "CNS_LOGS_ENCODING", "makedirs")),
    *((path, ("Cns2StorageOptions",)) for path in _ORBAX_USERS),
    ("init2winit/utils.py", (f"def {_WRITER}():",)),
)


def check(root: Path) -> None:
    """Raises ValueError where files of the tree in `root` have not what `TABLE` speaks of. Reads
    their text; a name that another commit lacks beside these is Python's NameError."""
    differences = []
    for path, names in _EXPECTED:
        text = (root / path).read_text("utf-8") if (root / path).is_file() else ""
        differences += [f"{path} has no {name}" for name in names if name not in text]
        if text.count(_WRITER) > 1:
            differences.append(f"{path} calls {_WRITER}")
    if differences:
        raise ValueError(
            f"init2winit in {root} lacks other things than the tested commit afd5a84: "
            f"{'; '.join(differences)}. Run `git checkout afd5a84` there"
        )


class UnpublishedError(RuntimeError, AttributeError):
    """Something that the public tree lacks was used."""


def _refuse(where: str) -> Any:
    raise UnpublishedError(
        f"{where} is not published, and nothing stands in for it: choose other hyperparameters "
        "(docs/init2winit.md: what the public tree lacks)"
    )


class _NoAttributes(type):
    """Classes that have nothing in them: `from tensorflow.contrib import image; image.rotate`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"{cls.__qualname__}.{name}")


class RaisingModule(types.ModuleType):
    """Takes the place of a module that is not there, so that files that use it can be imported.

    Every public name in it is a class, which may be inherited from, and raises when it is made or
    looked into.

    With `made`, objects of these classes are made and raise when they are called: the Conformers
    make a layer of lingvo's in any case, and call it with use_lingvo_attention=True alone.
    """

    def __init__(self, name: str, made: bool = False) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # it may have modules inside
        self.__dict__["_raising"] = "__call__" if made else "__new__"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        where = f"{self.__name__}.{name}"
        members = {
            "__qualname__": where,
            "__init__": lambda *_, **__: None,
            self.__dict__["_raising"]: lambda *_, **__: _refuse(where),
        }
        return _NoAttributes(name, (), members)


def fill_modules(root: Path, data_dir: str | None) -> None:
    """Fills in what is needed to import init2winit, which must be on sys.path: modules, and names
    that files read while they are imported. `data_dir` is None for no text files."""
    importlib.import_module("init2winit")
    if not _exists("init2winit.hessian"):
        hessian = types.ModuleType("init2winit.hessian")
        hessian.__path__ = [str(root / "hessian")]
        _put(hessian)
    for name in _RAISING:
        if not _exists(name):
            _put(RaisingModule(name, made=name == _LINGVO))
    data = {} if data_dir is None else {"DATA_DIR": data_dir}
    for path, names in _DATA_SETS.items():
        without = dict.fromkeys(name for name in names if name != "DATA_DIR")
        _import_with(path.removesuffix(".py").replace("/", "."), {**without, **data})


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _put(module: types.ModuleType) -> None:
    sys.modules[module.__name__] = module
    parent, _, name = module.__name__.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], name, module)


def _import_with(name: str, names: dict[str, Any]) -> None:
    """Imports a module that finds `names` defined when it runs."""
    importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(names)
    _put(module)
    spec.loader.exec_module(module)


def fill_names(main: Any) -> None:
    """Fills in what an imported init2winit misses when it runs; `main` is its module main, whose
    `experiment_dir` and `worker_id` are the run's own (`workloads.init2winit.runner`)."""
    import orbax.checkpoint as ocp
    import tensorflow as tf

    from workloads.algoperf.causal_attention import Substitute

    main.CNS_LOGS_ENCODING = ""
    main.makedirs = functools.partial(os.makedirs, exist_ok=True)

    def file_options(*, cns2_storage_options: dict[str, Any], **options: Any) -> Any:
        del cns2_storage_options
        return ocp.checkpoint_manager.FileOptions(**options)

    orbax = Substitute(
        ocp,
        options=Substitute(ocp.options, Cns2StorageOptions=dict),
        checkpoint_manager=Substitute(ocp.checkpoint_manager, FileOptions=file_options),
    )
    for path in _ORBAX_USERS:
        sys.modules[path.removesuffix(".py").replace("/", ".")].ocp = orbax  # type: ignore[attr-defined]
    gfile = Substitute(tf.io.gfile, FileError=tf.errors.NotFoundError)
    for name in ("init2winit.utils", "init2winit.dataset_lib.spm_tokenizer"):
        sys.modules[name].gfile = gfile  # type: ignore[attr-defined]
    logger = sys.modules["init2winit.utils"].MetricLogger
    logger.append_scalar_metrics = with_own_writer(logger.append_scalar_metrics)


def with_own_writer(append: Callable[..., None]) -> Callable[..., None]:
    """Returns MetricLogger.append_scalar_metrics that calls, at its end, the function
    `_read_and_write_csv` that it defines: the published code itself, for its object and metrics."""
    code = next(
        constant
        for constant in append.__code__.co_consts
        if isinstance(constant, types.CodeType) and constant.co_name == _WRITER
    )

    @functools.wraps(append)
    def append_scalar_metrics(self: Any, metrics: dict[str, Any]) -> None:
        append(self, metrics)
        free = {"self": self, "metrics": metrics}
        cells = tuple(types.CellType(free[name]) for name in code.co_freevars)
        types.FunctionType(code, append.__globals__, _WRITER, None, cells)()

    return append_scalar_metrics
