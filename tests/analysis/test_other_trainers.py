"""Files of other trainers as studies: modded-nanogpt's logs, marin's speedruns, W&B's table."""

import json
import re

import pytest

from analysis.load.measurements import is_metric
from analysis.load.records import NotAStudyError, StudyRuns
from analysis.load.studies import read_each, read_study

STEP = "step:{0}/1000 train_time:{0}ms step_avg:1.00ms\n"
LOSS = "step:{0}/1000 val_loss:{1} train_time:{0}ms step_avg:1.00ms\n"
# A trainer's source code stands in its log.
CODE = "import os\n    print0(f'step:{step}/{train_steps} val_loss:{val_loss} train_time:')\n"
RUN = LOSS.format(500, "3.5000") + STEP.format(1000) + LOSS.format(1000, "3.2816")
LOG = CODE + LOSS.format(0, "10.8258") + RUN
SPEEDRUN = {
    "eval/paloma/c4_en/bpb": 1.25,
    "model_size": 154147328,
    "model_flops": 1.75e18,
    "training_time": 1124.5,
    "train_config": {"num_train_steps": 4959, "data_seed": None},
    "wandb_run_link": "https://wandb.ai/marin-community/marin/runs/llama",
}
TABLE = '"Name","State","Runtime","eval_iters","seed","train/loss","eval/x/bpb","test/accuracy"\n'


def speedruns(*runs, **changes) -> str:
    return json.dumps({"runs": [{"run_info": SPEEDRUN | changes | x} for x in runs or ({},)]})


def read(root, texts) -> StudyRuns:
    """Returns the study of the files in `root`, a path to its content."""
    for place, content in texts.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_study(path if path.suffix == ".csv" else root)


META = {
    "model_flops_per_step": 1.75e18 / 4959,
    "parameters": 154147328,
    "url": SPEEDRUN["wandb_run_link"],
}
# Files, and the runs: state, last step, steps, seconds, and the last numbers.
STUDIES = {
    # Several runs may follow one another in a log, and times are in seconds or milliseconds.
    "modded-nanogpt": (
        {
            "adamw/a.txt": LOG.replace("train_time:1000ms", "train_time:2000.5s"),
            "muon/a.txt": LOG * 2 + RUN,
            "muon/b.log": CODE + LOSS.format(990, "3.3") + STEP.format(991),
            "muon/c.txt": LOG.replace("3.2816", "nan"),
        },
        [
            "modded-nanogpt adamw 0: done 1000/1000 2000.5 s, validation/loss 3.2816",
            "modded-nanogpt muon 0: done 1000/1000 1.0 s, validation/loss 3.2816",
            "modded-nanogpt muon 1: done 1000/1000 1.0 s, validation/loss 3.2816",
            "modded-nanogpt muon 2: done 1000/1000 1.0 s, validation/loss 3.2816",
            "modded-nanogpt muon 3: running 990/1000 0.99 s, validation/loss 3.3",
            "modded-nanogpt muon 4: diverged 1000/1000 1.0 s, validation/loss nan",
        ],
        {},
    ),
    # Folders are variants, and sizes workloads.
    "marin": (
        {
            "gdn/speedrun_results.json": speedruns({}, {"eval/paloma/c4_en/bpb": None}),
            "x/llama/130m/speedrun_results.json": speedruns(),
            "x/llama/1_2b/speedrun_results.json": speedruns(),
        },
        [
            "speedrun gdn 0: done 4959/4959 1124.5 s, validation/bpb 1.25",
            "speedrun gdn 1: diverged 4959/4959 1124.5 s, validation/bpb nan",
            "speedrun_130m x-llama 0: done 4959/4959 1124.5 s, validation/bpb 1.25",
            "speedrun_1_2b x-llama 0: done 4959/4959 1124.5 s, validation/bpb 1.25",
        ],
        META,
    ),
    # A seed is a setting or the end of the name; a run that crashed is lost.
    "W&B": (
        {
            "runs.csv": f"{TABLE}"
            '"glu","finished","9","200","7","9","1.25","0.5"\n'
            '"glu_seed8","finished","9","200","8","9","1.5","0.25"\n'
            '"mlp-s7","crashed","9","200","","9","2.5","0.5"\n'
            '"mlp-s7","finished","9","200","9","9","2.5","0.5"\n'
        },
        [
            "runs glu 7: done 1/None 0.0 s, validation/bpb 1.25, test/accuracy 0.5",
            "runs glu 8: done 1/None 0.0 s, validation/bpb 1.5, test/accuracy 0.25",
            "runs mlp 7: diverged 1/None 0.0 s, validation/bpb nan, test/accuracy nan",
            "runs mlp-s7 9: done 1/None 0.0 s, validation/bpb 2.5, test/accuracy 0.5",
        ],
        {},
    ),
}


@pytest.mark.parametrize("trainer", STUDIES)
def test_runs_of_other_trainers(tmp_path, trainer) -> None:
    """The seeds of W&B are stated; others are numbers of files, and no pairs."""
    texts, expected, meta = STUDIES[trainer]
    study = read(tmp_path, texts)
    runs = []
    for run in study.runs:
        name = f"{run.workload} {run.variant} {run.seed}: {run.state}"
        state = f"{name} {run.last_step}/{run.steps} {run.trained_seconds} s"
        values = (f"{x} {run.evals[x][-1]}" for x in run.evals if is_metric(x))
        runs.append(", ".join((state, *values)))
    assert runs == expected
    assert meta.items() <= study.runs[0].meta.items()
    assert study.shares_seeds == (trainer == "W&B")


def test_logs_of_variants_are_one_study_also_beside_others(tmp_path) -> None:
    row = "workload,variant,seed,metric,value\ngpt,glu,0,loss,3\n"
    read(tmp_path, {"logs/1.txt": LOG, "logs/b/1.txt": LOG, "study/results.csv": row})
    for root in (tmp_path, tmp_path / "logs"):
        studies = {study.name: len(study.runs) for study in read_each(root)}
        assert studies == ({"logs": 2, "study": 1} if root == tmp_path else {"logs": 2})


LOGS, SPEEDRUNS, RUNS = "b/1.txt", "b/speedrun_results.json", "runs.csv"
# A whole file of the same form, which stands beside a malformed one or, of RUNS, above a line.
WHOLE = {LOGS: {"a/1.txt": LOG}, SPEEDRUNS: {"a/speedrun_results.json": speedruns()}, RUNS: {}}
LINE = TABLE + "glu_s1,finished,9,2,1,9,1.5,1\n"
MALFORMED = {
    "empty log": (LOGS, "", "^unreadable: b/1.txt"),
    "binary log": (LOGS, b"\x00\xff\n", "^unreadable: b/1.txt"),
    "log without losses": (LOGS, CODE + STEP.format(5), "^unreadable: b/1.txt"),
    "log of endless steps": (LOGS, LOSS.format("9" * 400, "1.0"), "^unreadable: b/1.txt"),
    "log cut in a line": (LOGS, LOG[:-40], "^unfinished: .*/b/point_0/seed_0: .* 500 of 1,000"),
    "log with a step twice": (LOGS, LOG + LOSS.format(1000, "3.3"), "^duplicated: .*/b/.*seed_0"),
    "cut speedruns": (SPEEDRUNS, speedruns()[:99], f"^unreadable: {SPEEDRUNS}"),
    "list of speedruns": (SPEEDRUNS, "[]", f"^unreadable: {SPEEDRUNS}.*object"),
    "no list of runs": (SPEEDRUNS, '{"run": []}', f"^unreadable: {SPEEDRUNS}.*`runs`"),
    "no runs": (SPEEDRUNS, '{"runs": []}', f"^unreadable: {SPEEDRUNS}"),
    "speedrun of a list": (SPEEDRUNS, '{"runs": [{"run_info": []}]}', "object.*array"),
    "speedrun without a loss": (SPEEDRUNS, speedruns().replace("bpb", "bits"), "c4_en/bpb"),
    "speedrun of a text": (SPEEDRUNS, speedruns(model_size="150M"), "parameters"),
    "run without a seed": (RUNS, LINE + "glu,finished,9,2,,9,1.5,1", "runs.csv, line 3: .*'glu'"),
    "run of no seed": (RUNS, LINE + "glu,finished,9,2,-1,9,1.5,1", "line 3: .*seed"),
    "run that goes on": (RUNS, LINE + "glu_s2,running,9,2,2,9,1.5,1", "line 3: .*'running'"),
    "cut line": (RUNS, LINE + "glu_s2,finished,9,2,2,9", "line 3: .*missing"),
    "cell too many": (RUNS, LINE + "glu_s2,finished,9,2,2,9,2.5,1,1", "line 3: .*a cell without"),
    "text for a loss": (RUNS, LINE + "glu_s2,finished,9,2,2,9,low,1", "line 3: .*value"),
    "chart": (
        RUNS,
        '"Step","glu_s1 - val/loss","glu_s1 - val/loss__MAX"\n1,2,2',
        "line 2: .*__MAX",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_named(tmp_path, case) -> None:
    place, content, reason = MALFORMED[case]
    try:
        problems = [*map(str, read(tmp_path, WHOLE[place] | {place: content}).problems)]
    except NotAStudyError as error:
        problems = [str(error)]
    assert len(problems) == 1
    assert re.search(reason, problems[0])
