"""Samples in: who gets which ones (partition, sampler), how they are fetched (loader), and where real data comes from.

`partition`, `sampler` and the sources (`fetch`, `idx`, `mnist`, `digits`, `text`, `imdb`) import no torch.
"""
