"""Samples in: who gets which (`partition`, `sampler`), how they are fetched (`loader`), where from (`sets/`, `files/`).

`partition`, `sampler` and what reads and downloads files import no torch.
"""
