"""AlgoPerf: our NAdamW as its submission, logs in its format."""
