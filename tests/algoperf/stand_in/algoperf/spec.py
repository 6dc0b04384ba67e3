"""What a workload and a submission are."""

import enum

LossType = enum.Enum(
    "LossType",
    "SOFTMAX_CROSS_ENTROPY SIGMOID_CROSS_ENTROPY MEAN_SQUARED_ERROR CTC_LOSS MEAN_ABSOLUTE_ERROR",
    start=0,
)
ForwardPassMode = enum.Enum("ForwardPassMode", "TRAIN EVAL", start=0)
ParameterType = enum.Enum(
    "ParameterType",
    "WEIGHT BIAS CONV_WEIGHT BATCH_NORM_SCALE BATCH_NORM_BIAS LAYER_NORM_SCALE LAYER_NORM_BIAS "
    "EMBEDDING ATTENTION_Q ATTENTION_K ATTENTION_V ATTENTION_OUT ATTENTION_QKV ATTENTION_KV "
    "ATTENTION_BIAS",
    start=0,
)


class ShapeTuple:
    """A shape that JAX's tree functions take for a leaf."""

    def __init__(self, shape_tuple):
        self.shape_tuple = shape_tuple


class Workload:
    """Evaluation and parameters; what AlgoPerf leaves abstract is in `workloads/base.py`."""

    def __init__(self, *args, **kwargs):
        self._param_shapes = None
        self._param_types = None
        self._eval_iters = {}
        self.metrics_logger = None

    def attach_metrics_logger(self, metrics_logger):
        self.metrics_logger = metrics_logger

    @property
    def param_shapes(self):
        if self._param_shapes is None:
            raise ValueError("init_model_fn comes first")
        return self._param_shapes

    @property
    def model_params_types(self):
        return self._param_types

    def eval_model(
        self,
        global_batch_size,
        params,
        model_state,
        rng,
        data_dir,
        imagenet_v2_data_dir,
        global_step,
    ):
        results = {}
        for prefix, split, number, place in (
            ("train", "eval_train", self.num_eval_train_examples, data_dir),
            ("validation", "validation", self.num_validation_examples, data_dir),
            ("test", "test", self.num_test_examples, imagenet_v2_data_dir or data_dir),
        ):
            metrics = self._eval_model_on_split(
                split=split,
                num_examples=number,
                global_batch_size=global_batch_size,
                params=params,
                model_state=model_state,
                rng=rng,
                data_dir=place,
                global_step=global_step,
            )
            results.update({f"{prefix}/{name}": value for name, value in metrics.items()})
            if prefix != "train":
                results[f"{prefix}/num_examples"] = number
        return results
