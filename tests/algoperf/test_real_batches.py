"""AlgoPerf's real pipelines on fabricated data: batches by seed and step; skips without it."""

import itertools

import numpy as np
import pytest

from attention import registry as variants
from tests.algoperf import tiny_data
from workloads import registry

pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and its libraries' own


@pytest.mark.parametrize("name", ["imagenet_vit", "librispeech_conformer"])
def test_batches_are_a_function_of_seed_and_step(algoperf, tmp_path, name):
    directory = tiny_data.prepare(tmp_path / name, name)
    places = {
        "algoperf_dir": str(algoperf.directory),
        "tokenizer_vocab_path": str(directory / "spm_model.vocab"),
    }
    workload = registry.make(f"algoperf:{name}", variants.get("standard"), extra_paths=places)

    def drawn(count, seed=0, start=0):
        queue = workload._build_input_queue(seed, "train", str(directory), 8, start_step=start)
        first = (batch["inputs"] for batch in itertools.islice(queue, count))
        return [np.asarray(b[0] if isinstance(b, tuple) else b) for b in first]

    whole = drawn(4)
    # ImageNet's signs of rotations and shears are drawn too, which AlgoPerf leaves to chance.
    np.testing.assert_array_equal(drawn(4), whole)
    np.testing.assert_array_equal(drawn(1, start=3)[0], whole[3])
    assert not np.array_equal(whole[0], whole[1])
    assert not np.array_equal(drawn(1, seed=1)[0], whole[0])
