"""The paper's language models on C4: one study per table and size."""

from typing import Any

from sweeps.studies import ConfigDict, family

# The paper tunes on its 16-layer model and takes that point everywhere.
_TUNING_STUDY = "c4_lm_234m_paper"


def paper_lm(
    config: ConfigDict, workload: str, paper_table: str = "", fsdp: int = 8, **changes: Any
) -> None:
    """Sets the keys of a language model of the paper: standard against LASER, AdamW.

    One seed, as far as the paper says; the point is the one that c4_lm_234m_paper selected, in the
    same experiment_dir. Blocks in a loop with rematerialisation; one trial at a time has all
    devices of the host, of which `fsdp` share a copy of the parameters. changes: of other keys.
    """
    config.update(
        paper_table=paper_table,
        workload=workload,
        optimizer="adamw",
        protocol="grid",
        space=f"selected:{_TUNING_STUDY}",
        points=1,
        seeds=1,
        eval_every=8_000,
        mesh={"fsdp": fsdp},  # with a copy of all moments each, 301 M do not fit 16 GB
        scan_layers=True,
        remat=True,
        # The float32 logits of 16,384 tokens a device (c4_lm on 64 chips) are 2.1 GB, these 0.26.
        loss_chunk_tokens=2048,
        local={"workers": 1},
    )
    config.update(changes)


def c4_lm_234m_paper(config: ConfigDict) -> None:
    """The paper's language-model table, row 1, with its tuning: 15 AdamW points, 16 layers.

    Command:  python -m sweeps run --config=c4_lm_234m_paper --config.data_dir=$DATA/c4
    Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     15 tuning trials and 2 to compare, each of 160,000 steps (167.8 B tokens): about 19 h
              a trial, as compiled, so 323 h; the tuning is the expensive part.
    Result:   the paper prints C4 test losses of 2.681 (standard) and 2.673 (LASER).

    The other language-model studies take the point that this one selects: run it first, with the
    same --config.experiment_dir. The paper does not print its warmup: here 5 % of the steps.
    Learning rates of 0.1 and 0.01 are in its grid and may diverge: a loss that is not finite ends a
    trial at its next evaluation. One seed, so no interval and no verdict: --config.seeds=3 gives
    them.
    """
    paper_lm(
        config,
        "c4_lm_234m",
        "lm_test_loss",
        protocol="tune_then_compare",
        space="paper_adamw",
        points=15,
    )


def c4_lm_paper(config: ConfigDict) -> None:
    """The paper's language-model table, row 2: 301 M parameters, 32 layers, MLP 2048.

    Command:  python -m sweeps run --config=c4_lm_paper --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 160,000 steps (167.8 B tokens): about 32 h each, as compiled.
              Faster and smaller, another precision than the paper's:
              --config.compute_dtype=bfloat16 --config.kernel=fused --config.mesh.fsdp=16,
              300 ms a step and 2.3 GB as compiled (LASER 304 and 2.5; docs/performance.md): 13 h.
              That kernel is ours and has not run on a TPU yet: `python -m sweeps hardware` first;
              kernel=splash, a library's, takes 336 ms.
    Result:   the paper prints C4 test losses of 2.641 (standard) and 2.595 (LASER).
    """
    paper_lm(config, "c4_lm", "lm_test_loss")


def c4_lm_435m_paper(config: ConfigDict) -> None:
    """The paper's language-model table, row 3: 435 M parameters, 32 layers, MLP 4096.

    Command:  python -m sweeps run --config=c4_lm_435m_paper --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 160,000 steps (167.8 B tokens). No step time yet: ask
              `python -m sweeps compile`. With --config.compute_dtype=bfloat16, another precision
              than the paper's: 657 ms a step and 4.8 GB as compiled, 29 h each.
    Result:   the paper prints C4 test losses of 2.575 (standard) and 2.555 (LASER).
    """
    paper_lm(config, "c4_lm_435m", "lm_test_loss")


def c4_lm_1b_paper(config: ConfigDict) -> None:
    """The paper's scaling set, 1.1 B parameters.

    Model dim 2048: the paper's caption prints 1024, which would be 570 M parameters.

    The set is c4_lm_234m_paper, c4_lm_paper, c4_lm_435m_paper, this study and c4_lm_2b_paper, each
    with a table of its own: python -m analysis table EXPERIMENT_DIR prints all.
    `analysis scaling` takes the sizes of one matmul_precision, and so c4_lm_2b_paper only with
    --config.matmul_precision=default.

    Command:  python -m sweeps run --config=c4_lm_1b_paper --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  128 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 160,000 steps: about 32 h each, as compiled.
    Result:   the paper prints no loss for this size, only that LASER needs 15.65 % fewer parameters
              for a test loss of 2.347, which cannot be recomputed from what it prints.
    """
    paper_lm(config, "c4_lm_1b", "lm_scaling")


def c4_lm_2b_paper(config: ConfigDict) -> None:
    """The paper's 2.2 B model in float32: end of the scaling set, first half of the precision pair.

    The second half is c4_lm_2b_bfloat16. Products of float32 arrays are float32 here
    (matmul_precision), six products of bfloat16 numbers each on a TPU; the paper does not say
    whether its own were.

    Command:  python -m sweeps run --config=c4_lm_2b_paper --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 160,000 steps: about 111 h each, as compiled: a float32
              product is six of bfloat16.
    Result:   the paper prints losses of 2.344 (standard) and 2.326 (LASER) in float32; elsewhere it
              has its standard model reach 2.327, and the two cannot be reconciled.
    """
    paper_lm(config, "c4_lm_2b", "lm_precision", fsdp=16)
    config.matmul_precision = "float32"  # a TPU's own is bfloat16, the other half of the pair


def c4_lm_2b_bfloat16(config: ConfigDict) -> None:
    """The paper's precision pair, second half: 2.2 B with weights and activations in bfloat16.

    The first half is c4_lm_2b_paper. Optimizer moments and the loss stay in float32.

    Command:  python -m sweeps run --config=c4_lm_2b_bfloat16 --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 160,000 steps: about 24 h each, as compiled.
    Result:   the paper prints losses of 2.350 (standard) and 2.333 (LASER).
    """
    paper_lm(
        config,
        "c4_lm_2b",
        "lm_precision",
        fsdp=16,
        compute_dtype="bfloat16",
        param_dtype="bfloat16",
        matmul_precision="bfloat16",
    )


def c4_lm_2b_diff(config: ConfigDict) -> None:
    """The paper's Differential Transformer pair: Diff against Diff + LASER, 2.2 B, 24 B tokens.

    Command:  python -m sweeps run --config=c4_lm_2b_diff --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 22,888 steps (24 B tokens). No step time yet: ask
              `python -m sweeps compile`.
    Result:   the paper prints downstream accuracies alone for this pair (about 1 point in the
              mean); this study reports the loss, which is another quantity. The paper does not say
              whether it keeps Diff's norm per head: --config.diff_head_norm=False leaves it out.
    """
    paper_lm(
        config,
        "c4_lm_2b",
        fsdp=16,
        paper_note=(
            "The paper prints downstream accuracies for its Differential Transformer pair, no "
            "loss: nothing of it can stand beside this table."
        ),
        variants=("diff", "diff_laser"),
        baseline="diff",
        steps=22_888,
        eval_every=2_289,
    )


def c4_lm_2b_superglue(config: ConfigDict) -> None:
    """The paper's SuperGLUE table: the 2.2 B models fine-tuned on four tasks for ten epochs.

    The tasks are COPA, WiC, WSC and RTE. The paper says neither batch, rate, mixture nor prompt.
    Ours: one model learns the four tasks mixed, in lm-eval's T5 prompts, 32 questions a batch, one
    of three rates chosen on standard attention by the questions that are held out of training.
    --config.workload=c4_lm_2b:superglue_rte and the like have one model for a task;
    --config.finetune_from= has random weights to compare with.

    Command:  python -m sweeps run --config=c4_lm_2b_superglue --config.data_dir=$DATA/c4
              (after c4_lm_2b_paper, in the same experiment_dir, and
              python -m workloads prepare downstream --from=TREE --data_dir=$DATA/c4)
    Devices:  those of c4_lm_2b_paper, or fewer: --config.mesh.fsdp=N.
    Time:     5 trials of 2,495 steps of 32 sequences. No step time yet: ask
              `python -m sweeps compile --topology=v5e:4x8`.
    Result:   not run: the benchmark's data are to be had by a network alone.
    """
    paper_lm(
        config,
        "c4_lm_2b:superglue",
        fsdp=8,
        finetune_from="c4_lm_2b_paper",
        matmul_precision="float32",
        protocol="tune_then_compare",
        space="finetuning_adamw",
        points=3,
        eval_every=250,
        downstream="superglue",
    )


def c4_lm_8b_paper(config: ConfigDict) -> None:
    """The paper's 7.7 B pair: standard against LASER on 44 B tokens.

    Command:  python -m sweeps run --config=c4_lm_8b_paper --config.data_dir=$DATA/c4
              (after c4_lm_234m_paper, whose selected point it takes)
    Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp), and heads, MLP and
              vocabulary over 2 (mesh.tensor), 11.0 GB each; mesh.tensor=1 takes 15.5. Of several
              hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     2 trials of 41,962 steps (44 B tokens): about 27 h each, as compiled.
    Result:   the paper prints downstream accuracies alone for this size; this study reports the
              loss, which is another quantity.

    Activations are in bfloat16 and parameters in float32, our choice: the paper does not say.
    """
    paper_lm(
        config,
        "c4_lm_8b",
        fsdp=16,
        paper_note=(
            "The paper prints downstream accuracies for its 7.7 B model, no loss: nothing of it "
            "can stand beside this table."
        ),
        steps=41_962,
        eval_every=2_099,
        compute_dtype="bfloat16",
        mesh={"tensor": 2},
    )


def c4_lm_lamb(config: ConfigDict) -> None:
    """The paper's optimizer ablation: the 301 M language model trained with LAMB.

    Command:  python -m sweeps run --config=c4_lm_lamb --config.data_dir=$DATA/c4
    Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     3 tuning trials and 2 to compare, each of 160,000 steps. No step time with LAMB
              yet: with AdamW (c4_lm_paper) a trial takes 32 h.
    Result:   the paper prints test losses of 2.758 (standard) and 2.741 (LASER), and train losses
              of 2.749 and 2.736.

    The paper does not print LAMB's hyperparameters: three learning rates (0.01, 0.003, 0.001) with
    weight decay 0.1 are tried on standard attention (spaces/lamb.json).
    """
    paper_lm(
        config,
        "c4_lm",
        "lm_lamb",
        optimizer="lamb",
        protocol="tune_then_compare",
        space="lamb",
        points=3,
    )


get_config = family("c4_lm", globals())
