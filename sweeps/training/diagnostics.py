"""Diagnostics while training: what a trial's attention layers do, on examples that stay the same.

A probe is the first examples of the batch at step 0, a function of the seed alone: every variant
of a seed, at every step, is asked the same. The model is that of training without what is random
or moves: no dropout, no SpecAugment, batch statistics of the probe itself. The loss is the
trial's, with its label smoothing, a mean over the probe; gradients are its.

It is a function of its own beside the train step, compiled once per program, and reads the state:
what is trained is the same with and without it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from attention import probe
from attention.verification import layer_statistics
from sweeps.records import measurements
from sweeps.study.trial import Trial
from sweeps.training import train_step
from workloads.base import spec

Array = jax.Array


class CompiledDiagnostics:
    """A program's compiled diagnostics; use `of`."""

    def __init__(self, workload: spec.Workload) -> None:
        self._workload = workload
        self._observable = workload.observable()
        self._whole = workload.devices.replicated()
        # Called with parameters, model state, batch and label smoothing.
        self.measure = jax.jit(self._measure, out_shardings=self._whole)
        self._paths: tuple[str, ...] = ()

    def first(self, batch: spec.Batch, examples: int) -> spec.Batch:
        """Returns the first examples of a batch, whole on every device."""
        cut = jax.jit(
            lambda whole: jax.tree.map(lambda leaf: leaf[:examples], whole),
            out_shardings=self._whole,
        )
        first: spec.Batch = cut(batch)
        return first

    def layers(self, measured: Any) -> list[dict[str, Any]]:
        """Returns the record of each layer, in order, from what `measure` returned."""
        layers = zip(self._paths, jax.device_get(measured), strict=True)
        return [
            {"layer": path, "index": index, **layer_statistics.summary(*values)}
            for index, (path, values) in enumerate(layers)
        ]

    def _measure(self, params: Any, model_state: Any, batch: spec.Batch, smoothing: Array) -> Any:
        params = self._workload.observable_parameters(params)

        def loss(params: Any, probes: Any) -> tuple[Array, list[probe.Layer]]:
            with probe.probed(probes) as record:
                logits, _ = self._observable.model_fn(
                    params,
                    batch,
                    model_state,
                    spec.ForwardPassMode.EVAL,
                    jax.random.key(0),
                    update_batch_norm=False,
                    use_running_average_bn=False,
                    dropout_rate=0.0,
                )
            weights = batch.get("weights")
            losses = self._observable.loss_fn(batch["targets"], logits, weights, smoothing)
            return losses["summed"] / losses["n_valid_examples"], record.layers

        _, shapes = jax.eval_shape(lambda: loss(params, None))
        if not shapes:
            raise ValueError(
                f"{self._workload}: no attention variant was called, so there is nothing to "
                "diagnose; set --config.diagnostics=0"
            )
        self._paths = tuple(layer.path for layer in shapes)
        gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
        (of_params, of_probes), layers = gradient(params, probe.zero_probes(shapes))
        return [
            (
                layer_statistics.measure(layer),
                {
                    "logit": layer_statistics.norm(added),
                    **layer_statistics.kernel_norms(of_params, layer.path),
                },
            )
            for layer, added in zip(layers, of_probes, strict=True)
        ]


@functools.cache
def of(step_function: train_step.TrainStep) -> CompiledDiagnostics:
    """Returns the diagnostics of a program, made once: what it compiled stays for later trials."""
    return CompiledDiagnostics(step_function.workload)


class Recorder:
    """A trial's recordings: when they are due, and their rows."""

    def __init__(
        self,
        trial: Trial,
        step_function: train_step.TrainStep,
        state: train_step.TrainState,
        queue: Callable[[int], Iterator[spec.Batch]],
    ) -> None:
        """`queue(step)` returns the trial's training batches from a step on."""
        self._trial, self._compiled = trial, of(step_function)
        self._batch = self._compiled.first(next(queue(0)), trial.diagnostics_examples)
        self._smoothing = jnp.asarray(trial.hyperparameters["label_smoothing"], jnp.float32)
        self.row(0, state)  # compiles, which belongs to no time of the trial

    def is_due(self, step: int) -> bool:
        """Whether to record after `step` updates: at the start, every so many, and at the end."""
        return step % self._trial.diagnostics == 0 or step == self._trial.steps

    def row(self, step: int, state: train_step.TrainState) -> dict[str, Any]:
        """Returns the attempt's row (`sweeps.records.measurements`), of the state after `step`
        updates.

        Where several processes train, all must call it.
        """
        measured = self._compiled.measure(
            state.params, state.model_state, self._batch, self._smoothing
        )
        return {
            "kind": measurements.DIAGNOSTICS,
            "global_step": step,
            "histogram_edges_log10": list(layer_statistics.HISTOGRAM_EDGES),
            "examples": self._trial.diagnostics_examples,
            "layers": self._compiled.layers(measured),
        }
