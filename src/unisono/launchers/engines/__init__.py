"""Engines that start ranks on many machines for us: Slurm, Kubernetes, Open MPI, Ray."""
