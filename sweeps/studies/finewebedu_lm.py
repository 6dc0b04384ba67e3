"""AlgoPerf 1.0's language model on FineWeb-Edu, trained by our loop."""

from sweeps.studies import ConfigDict, family


def finewebedu_lm_compare(config: ConfigDict) -> None:
    """AlgoPerf's decoder, 253 M parameters: three AdamW points, then standard and LASER x 3 seeds.

    Command:  python -m sweeps run --config=finewebedu_lm_compare --config.data_dir=$DATA/finewebedu
    Devices:  one host with all its accelerators trains one trial (local.workers is 1).
    Time:     9 trials of 72,000 steps of 64 sequences. AlgoPerf allows a trial 8.9 h on 4 A100s
              (0.444 s a step): at most 80 h of such a machine.
    Result:   not run. AlgoPerf's target is a validation perplexity of 22.2995; there is no test
              split, and no published figure for LASER.

    The points are ours (spaces/finewebedu_adamw.json); activations in bfloat16 as AlgoPerf
    computes.
    """
    config.update(
        workload="finewebedu_lm",
        optimizer="adamw",
        protocol="tune_then_compare",
        space="finewebedu_adamw",
        points=3,
        eval_every=7_200,
        compute_dtype="bfloat16",
        loss_chunk_tokens=2048,
        local={"workers": 1},
    )


get_config = family("finewebedu_lm", globals())
