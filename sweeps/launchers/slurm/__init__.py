"""Slurm: job arrays by sbatch."""
