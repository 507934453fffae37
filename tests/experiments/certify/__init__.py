"""Tests of experiments/certify."""
