"""Training one trial: loop, step, optimizers, checkpoints."""
