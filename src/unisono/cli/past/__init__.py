"""Verbs that compute steps of runs that are over again."""
