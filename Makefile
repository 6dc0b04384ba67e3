# One command runs the main job, one the tests; both set up their own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Extras of setup.cfg that studies and their reports use; those of tests, of which some would be skipped
# without downstream.
STUDY_EXTRAS := sweeps,analysis,small-speech
EXTRAS ?= test,downstream
DEMO := digits_vit_demo spoken_digits_conformer_demo pydoc_lm_demo
# The studies of docs/evidence.md, in the order in which `make evidence` runs their targets.
EVIDENCE := pydoc_lm_evidence read_speech_conformer_evidence fashion_vit_evidence pydoc_lm_mechanisms \
    pydoc_finewebedu_mechanisms fashion_vit_mechanisms
# A process that dies ends the run, with its test's name: what it leaves behind (a cluster's daemons)
# would keep the next one's tests waiting.
PYTEST := $(BIN)/python -m pytest --dist loadgroup --max-worker-restart=0
# Options of `make soak`, `make simulate`, `make test-compilers`, `make parity` and `make sizes-1` to `-4`.
SOAK ?= --kills 100 --trials 40
SIMULATE ?= --trials 1000 --workers 1000
PARITY ?=
SIZES ?=
COMPILER ?= tpu
COMPILED ?= tests/sweeps/test_compile.py tests/sweeps/test_tpu_host.py \
    tests/attention/test_accelerated_compiled.py
SLOW_TESTS = slow and not nightly
# What runs tests in environments that have no other use.
TOOLS := 'pytest<9.2' pytest-xdist hypothesis
# What `make test-algoperf`, `make test-init2winit` and `make test-maxtext` run.
ALGOPERF_TESTS ?= tests/algoperf
INIT2WINIT_TESTS ?= tests/init2winit
# MaxText needs Python 3.12 or newer.
MAXTEXT_TESTS ?= tests/maxtext
MAXTEXT_PYTHON ?= python3.12
QUICK := digits_vit_quick spoken_digits_conformer_quick pydoc_lm_quick

.PHONY: demo data-fashion data-speech evidence evidence-text evidence-text-mechanisms evidence-images evidence-images-mechanisms evidence-text-grid-1 evidence-text-grid-2 evidence-images-grid-1 evidence-images-grid-2 evidence-speech-grid-1 evidence-speech-grid-2 evidence-speech evidence-patch4 speedup-text speedup-images speedup-images-long sizes-1 sizes-2 sizes-3 sizes-4 quick test test-slow test-all test-version test-lowest test-compilers test-algoperf test-init2winit test-maxtext parity soak simulate performance vega check clean

# Sets of extras that $(VENV) may have, each marked by a file: installed when it is first needed, and anew
# when the dependencies change.
$(VENV)/.installed: SET = $(STUDY_EXTRAS)
$(VENV)/.installed-pictures: SET = $(STUDY_EXTRAS),pictures
$(VENV)/.installed-test: SET = $(EXTRAS)
$(VENV)/.installed $(VENV)/.installed-pictures $(VENV)/.installed-test: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(SET)]'
	touch $@

# Each study's table as soon as it is complete.
define run
	$(BIN)/python -m sweeps run --config=$(1)
	$(BIN)/python -m analysis table experiments/$(1)
	$(BIN)/python -m analysis plots experiments/$(1)

endef

## demo: images (eight rows), speech and language (standard, LASER): three tables and their plots
demo: $(VENV)/.installed-pictures
	$(foreach study,$(DEMO),$(call run,$(study)))

# Gets a workload's data from a Debian package and prepares it, unless it is there: its name, the package
# and the folder inside.
define from_debian
	@$(BIN)/python -m workloads check $(1) >/dev/null 2>&1 || { \
	    folder=$$(mktemp -d) || exit 2; \
	    trap 'rm -r "$$folder"' EXIT; trap 'exit 2' INT TERM; \
	    (cd "$$folder" && apt-get -qq -o APT::Sandbox::User=root download $(2)) || { \
	        echo "make: apt-get could not download $(2). If it has no package" \
	            "lists, run apt-get update as root and repeat. What else is possible:" >&2; \
	        $(BIN)/python -m workloads check $(1); exit 2; }; \
	    dpkg-deb -x "$$folder"/*.deb "$$folder" && \
	        $(BIN)/python -m workloads prepare $(1) --from="$$folder/$(3)"; }
endef

## data-fashion: gets and prepares Fashion-MNIST (31 MB, from Debian or Ubuntu), unless it is there
data-fashion: $(VENV)/.installed
	$(call from_debian,fashion_vit,dataset-fashion-mnist,usr/share/datasets/fashion-mnist)

## data-speech: gets and prepares read Russian (179 MB, from Debian or Ubuntu), unless it is there
data-speech: $(VENV)/.installed
	$(call from_debian,read_speech_conformer,festvox-ru,usr/share/festival/voices/russian/msu_ru_nsh_clunits)

## evidence-text: the paper's eight rows on Python's documentation, 12 seeds; 50 minutes, resumable
evidence-text: $(VENV)/.installed-pictures
	$(call run,pydoc_lm_evidence)

## evidence-text-mechanisms: mechanisms of today on the same text, 12 seeds; 65 minutes, resumable
evidence-text-mechanisms: $(VENV)/.installed-pictures
	$(call run,pydoc_lm_mechanisms)
	$(call run,pydoc_finewebedu_mechanisms)

## evidence-images: the paper's eight rows on real pictures, 10 seeds; 75 to 110 minutes, resumable
evidence-images: data-fashion $(VENV)/.installed-pictures
	$(call run,fashion_vit_evidence)

## evidence-images-mechanisms: mechanisms of today on the same pictures; 75 minutes, resumable
evidence-images-mechanisms: data-fashion $(VENV)/.installed-pictures
	$(call run,fashion_vit_mechanisms)

## evidence-speech: six rows on a real voice, 10 seeds; 60 to 80 minutes, resumable
evidence-speech: data-speech $(VENV)/.installed-pictures
	$(call run,read_speech_conformer_evidence)

## evidence-patch4: standard and LASER on the same pictures in 49 tokens; at most 60 minutes, resumable
evidence-patch4: data-fashion $(VENV)/.installed-pictures
	$(call run,fashion_vit_patch4)

# One half of a grid's seeds, a study of its own: its name's end, its first seed, their number.
define half
	$(BIN)/python -m sweeps run --config=$(1) --config.name=$(1)_$(2) --config.first_seed=$(2) \
	    --config.seeds=$(3)
endef

## evidence-text-grid-1: seven rows at four rates each on the same text, seeds 24 to 27; 70 minutes, resumable
evidence-text-grid-1: $(VENV)/.installed-pictures
	$(call half,pydoc_lm_grid,24,4)

## evidence-text-grid-2: the same with seeds 28 to 31; 70 minutes, resumable
evidence-text-grid-2: $(VENV)/.installed-pictures
	$(call half,pydoc_lm_grid,28,4)

## evidence-images-grid-1: four rows at four rates each on real pictures, seeds 25 to 29; 60 to 90 minutes, resumable
evidence-images-grid-1: data-fashion $(VENV)/.installed-pictures
	$(call half,fashion_vit_grid,25,5)

## evidence-images-grid-2: the same with seeds 30 to 34; 60 to 90 minutes, resumable
evidence-images-grid-2: data-fashion $(VENV)/.installed-pictures
	$(call half,fashion_vit_grid,30,5)

## evidence-speech-grid-1: three rows at four rates each on a real voice, seeds 15 to 19; 65 minutes, resumable
evidence-speech-grid-1: data-speech $(VENV)/.installed-pictures
	$(call half,read_speech_conformer_grid,15,5)

## evidence-speech-grid-2: the same with seeds 20 to 24; 65 minutes, resumable
evidence-speech-grid-2: data-speech $(VENV)/.installed-pictures
	$(call half,read_speech_conformer_grid,20,5)

## evidence: all of docs/evidence.md but evidence-patch4, one after the other; 8 hours, resumable
evidence: evidence-text evidence-speech evidence-images evidence-text-mechanisms \
    evidence-images-mechanisms speedup-text speedup-images-long speedup-images
	$(BIN)/python -m analysis summary $(addprefix experiments/,$(EVIDENCE))
	$(BIN)/python -m analysis ledger $(addprefix experiments/,$(EVIDENCE))

# Standard attention at other numbers of steps than an evidence study's, each tuned.
define budgets
	$(foreach steps,$(2),$(BIN)/python -m sweeps run --config=$(1)_evidence --config.name=$(1)_$(steps) \
	    --config.variants=standard --config.steps=$(steps) --config.eval_every=$(3)
	)
endef

# What variants save: the study and the budgets beside its own.
define speedup
	$(BIN)/python -m analysis speedup experiments/$(1)_evidence $(addprefix experiments/$(1)_,$(2))
endef

## speedup-text: after `evidence-text`, compute that variants save on text; at most 60 minutes, resumable
speedup-text: $(VENV)/.installed-pictures
	$(call budgets,pydoc_lm,1500 6000 12000,500)
	$(call speedup,pydoc_lm,1500 6000 12000)

## speedup-images: after `evidence-images` and the next, the same on real pictures; 40 minutes, resumable
speedup-images: data-fashion
	$(call budgets,fashion_vit,5000 20000,2500)
	$(call speedup,fashion_vit,5000 20000 40000)

## speedup-images-long: its largest budget; about 65 minutes, resumable
speedup-images-long: data-fashion
	$(call budgets,fashion_vit,40000,10000)

# Sizes of one model at numbers of steps. Rates: sweeps/studies/pysource.py. Tuning takes seed 24, which a
# study that does not tune must leave out.
STANDARD_ALONE := --config.variants=standard
SIZES_1500 := $(STANDARD_ALONE) --config.points=2 --config.eval_every=500
SIZES_3000 :=
SIZES_6000 := $(STANDARD_ALONE) --config.points=2 --config.eval_every=2000
SIZES_12000 = $(STANDARD_ALONE) --config.protocol=grid --config.points=1 --config.eval_every=4000 \
    --config.first_seed=25 --config.space=selected:pysource_lm_$(size)_6000
define sizes
	$(foreach size,$(1),$(foreach steps,$(2),$(BIN)/python -m sweeps run --config=pysource_lm_sizes \
	    --config.workload=pysource_lm_$(size) --config.name=pysource_lm_$(size)_$(steps) \
	    --config.steps=$(steps) $(SIZES_$(steps)) $(SIZES)
	))
endef

## sizes-1: 105 k and 164 k parameters on Python's source code, four budgets; 75 minutes, resumable
sizes-1: $(VENV)/.installed
	$(call sizes,105k 164k,1500 3000 6000 12000)

## sizes-2: the same with 57 k and 320 k; 85 minutes, resumable
sizes-2: $(VENV)/.installed
	$(call sizes,57k 320k,1500 3000 6000 12000)

## sizes-3: the same with 722 k, two budgets; 60 minutes, resumable
sizes-3: $(VENV)/.installed
	$(call sizes,722k,1500 3000)

## sizes-4: its larger budgets; 60 minutes, resumable
sizes-4: $(VENV)/.installed
	$(call sizes,722k,6000 12000)

# Seven small programs that train for seconds: LLVM's first passes pay here, too.
quick: export XLA_FLAGS ?= --xla_backend_optimization_level=1
## quick: a demonstration in three domains, whose verdicts are known: 2.5 minutes
quick: $(VENV)/.installed
	@for study in $(QUICK); do \
	    $(BIN)/python -m sweeps run --brief --config=$$study --config.experiment_dir=experiments/quick || exit; \
	done
	@echo
	@echo "A demonstration: pilots with other seeds chose what is compared, so verdicts are known."
	@$(BIN)/python -m analysis report experiments/quick

## test: lint, type check, every test but the slow ones
test: $(VENV)/.installed-test check
	$(PYTEST) -n 2 -m "not slow"  # together at most 4 GB

## test-all: all of them: real Slurm and Ray where they are, kills, full disks, several processes
test-all: SLOW_TESTS = slow
test-all: test test-slow

# Unlike the quick ones, slow tests train and evaluate: LLVM's first passes pay (338 CPU-s for four of
# their modules, 418 by what tests/conftest.py says, 363 as users compile).
test-slow: export XLA_FLAGS ?= --xla_backend_optimization_level=1
## test-slow: those that CI runs beside the quick ones
test-slow: $(VENV)/.installed-test
	$(PYTEST) -n 3 -m "$(SLOW_TESTS)"  # two cores are served by three: some wait

# What attention/ imports, each in the lowest version of setup.cfg.
.venv-lowest/.installed: setup.cfg
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(TOOLS) \
	    $$(sed -n 's/^    \(jax\|flax\|numpy\)>=/\1==/p' setup.cfg)
	touch $@

# What may differ between versions: each mixer and modifier against its reference, strict promotion
# and symbolic lengths, injection into Linen and NNX, examples of `flex`, refusals of functions.
VERSION_TESTS := -n 2 --dist loadgroup -m "not slow" \
    -k "in_float32 and causal or symbolic or by_hand or bad_input or test_inject or \
    test_self_attention and not mesh or test_functions" \
    $(patsubst %,tests/attention/test_%.py,contract flex functions inject self_attention)

## test-version: what may differ in attention/ on another Python (PYTHON=python3.13 VENV=.venv-newest)
test-version: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(VERSION_TESTS)

## test-lowest: the same with the lowest versions of JAX, Flax and NumPy
test-lowest: .venv-lowest/.installed
	$(<D)/bin/python -m pytest $(VERSION_TESTS)

# The compilers come in environments of their own: beside libtpu JAX looks for TPUs.
.venv-compile-%/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(TOOLS) \
	    -e '.[compile-$*]'
	touch $@

## test-compilers: steps and kernels by the real compiler for TPUs (COMPILER=gpu: GPUs), without one
test-compilers: .venv-compile-$(COMPILER)/.installed
	$(<D)/bin/python -m pytest -n 2 $(COMPILED)

# What these two import, beside the tests' own; 4 GB each.
.venv-with-%/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test,$*]'
	touch $@

.venv-with-init2winit/.installed: setup.cfg pyproject.toml tests/init2winit/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' \
	    -r tests/init2winit/requirements.txt
	touch $@

.venv-with-maxtext/.installed: setup.cfg pyproject.toml tests/maxtext/requirements.txt
	$(MAXTEXT_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[attention,analysis]' $(TOOLS) \
	    -r tests/maxtext/requirements.txt
	touch $@

# Before an installation of minutes.
named-%:
	@test -d "$($*)" || { echo "make: $*='$($*)' is no directory; name a checkout: $*=DIR" >&2; exit 2; }

## test-algoperf: what skips without AlgoPerf, against the checkout ALGOPERF_DIR (docs/algoperf.md)
test-algoperf: named-ALGOPERF_DIR .venv-with-algoperf/.installed
	ATTNPERF_ALGOPERF_DIR="$(abspath $(ALGOPERF_DIR))" \
	    .venv-with-algoperf/bin/python -m pytest -rs -m "not table" $(ALGOPERF_TESTS)

## test-init2winit: what skips without init2winit, against INIT2WINIT_DIR (docs/init2winit.md)
test-init2winit: named-INIT2WINIT_DIR .venv-with-init2winit/.installed
	ATTNPERF_INIT2WINIT_DIR="$(abspath $(INIT2WINIT_DIR))" \
	    .venv-with-init2winit/bin/python -m pytest -rs $(INIT2WINIT_TESTS)

## test-maxtext: what skips without MaxText, in an environment of its own (docs/maxtext.md)
test-maxtext: .venv-with-maxtext/.installed
	.venv-with-maxtext/bin/python -m pytest -rs $(MAXTEXT_TESTS)

## parity: our workloads and optimizer against those of ALGOPERF_DIR, number by number
parity: export XLA_FLAGS ?= --xla_backend_optimization_level=3
parity: named-ALGOPERF_DIR .venv-with-algoperf/.installed
	ATTNPERF_ALGOPERF_DIR="$(abspath $(ALGOPERF_DIR))" \
	    .venv-with-algoperf/bin/python -m pytest tests/algoperf/parity $(PARITY)

# vl-convert's bundle of Vega, Vega-Lite and Vega-Embed, the same bytes from the same version. A new version
# may bring other licences: analysis/render/vega/LICENSES.txt.
VEGA := import vl_convert; print(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), end="")
VEGA_FILE := analysis/render/vega/vega.js.gz

## vega: writes the libraries that draw a report's charts anew
vega:
	$(PYTHON) -m venv .venv-vega
	.venv-vega/bin/python -m pip install --quiet --disable-pip-version-check vl-convert-python==1.9.0.post1
	.venv-vega/bin/python -c '$(VEGA)' | gzip -9 -n >$(VEGA_FILE)

## soak: a study whose jobs and drivers are killed a hundred times loses nothing (docs/faults.md)
soak: $(VENV)/.installed-test
	$(BIN)/python -m tests.sweeps.chaos.soak $(SOAK)

## simulate: the driver's code on simulated clusters that fail in every way (docs/faults.md)
simulate: $(VENV)/.installed-test
	$(BIN)/python -m tests.sweeps.simulation.simulate $(SIMULATE)

## performance: docs/performance.csv and .md, by the real TPU compiler; about an hour
performance: .venv-compile-tpu/.installed
	.venv-compile-tpu/bin/python -m tests.benchmarks.performance --anew

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-* .pytest_cache experiments
