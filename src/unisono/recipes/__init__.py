"""Ready-made jobs: a model, its data and its settings each, built from the public interface only.

`catalog` lists them without importing torch; each recipe's file is read top to bottom.
"""
