"""The paper's studies on AlgoPerf's own workload objects: its models, its data pipelines."""

from sweeps.studies import ConfigDict, family
from sweeps.studies.imagenet_vit import imagenet_vit_paper
from sweeps.studies.librispeech_conformer import librispeech_conformer_paper


def algoperf_imagenet_vit_paper(config: ConfigDict) -> None:
    """The paper's ViT table on AlgoPerf's own workload object: its model, its data pipeline.

    Command:  python -m sweeps run --config=algoperf_imagenet_vit_paper \\
                  --config.data_dir=$DATA/imagenet/jax --config.algoperf_dir=$ALGOPERF
    Time:     90 trials of 167,999 steps at batch 1024. AlgoPerf allows a trial 19.4 h on 8 V100s
              (0.415 s a step), so at most 90 x 19.4 h = 1,744 h of such a machine.
    Result:   that of imagenet_vit_paper, which trains our model of the same parameters: the paper
              prints validation errors 0.2532 (standard), 0.2417 (LASER), 0.2455 and 0.2372 (both
              with QK-normalization).

    Needs AlgoPerf's libraries (pip install -e '.[algoperf]'). A trial that is interrupted at step n
    reads n batches again before it goes on: AlgoPerf's pipelines start at their first batch alone.
    """
    imagenet_vit_paper(config)
    config.update(
        workload="algoperf:imagenet_vit",
        loader_workers=0,  # AlgoPerf's pipelines choose their own
    )


def algoperf_librispeech_conformer_paper(config: ConfigDict) -> None:
    """The paper's Conformer table on AlgoPerf's own workload object: its model, its data pipeline.

    Command:  python -m sweeps run --config=algoperf_librispeech_conformer_paper \\
                  --config.data_dir=$DATA/librispeech --config.algoperf_dir=$ALGOPERF \\
                  --config.tokenizer_vocab_path=$DATA/librispeech/spm_model.vocab
    Devices:  one host with 8 V100s or better; batch 256 divides over its devices.
    Time:     80 trials of 76,000 steps at batch 256. AlgoPerf allows a trial 16.1 h on 8 V100s
              (0.763 s a step), so at most 80 x 16.1 h = 1,289 h of such a machine.
    Result:   that of librispeech_conformer_paper, which trains our model of the same parameters:
              the paper prints WER on test-clean 0.050876 (standard), 0.049786 (LASER), 0.049747 and
              0.049231 (both with QK-normalization); median of 5 seeds.

    Needs AlgoPerf's libraries (pip install -e '.[algoperf]') and the SentencePiece model that its
    dataset_setup wrote: without it AlgoPerf's WER is 0, and the study refuses to start. AlgoPerf's
    loader shuffles by torch's global generator; here it is seeded by the trial's seed. A trial that
    is interrupted at step n reads n batches again before it goes on. Six rows, because the model
    scales its queries per dimension already.
    """
    librispeech_conformer_paper(config)
    config.update(
        workload="algoperf:librispeech_conformer",
        loader_workers=0,  # AlgoPerf's pipelines choose their own
    )


get_config = family("algoperf", globals())
