"""Downstream evaluation: what a language model can do, judged by lm-eval on local data."""
