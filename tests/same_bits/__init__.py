"""Two commits, one machine: do named jobs still train the same bits? ``make same-bits BASE=COMMIT``.

The jobs use the command line and the public names alone, so that everything behind them may move between the two.
"""
