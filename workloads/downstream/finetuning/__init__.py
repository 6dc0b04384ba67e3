"""Fine-tuning: a decoder that learns to answer a suite's questions."""
