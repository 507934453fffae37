"""Recipes run in this process, as in the tests of the verbs."""

from cli.conftest import here as here
