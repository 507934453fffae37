"""Experiments: what the verbs that run a job several times do, callable from Python.

`verify.verify`, `chaos.chaos`, `replay.replay`, `scaling.measure_scaling`, `collectives.measure_collectives`,
`links.compare_links`, `strategies.compare_strategies`, `tune.tune` and `forecast.forecast` take what their verbs take,
under the same names, print nothing and return plain values. `target` is a recipe's name, or a script that trains
through `unisono.Run` and gets `args`; `tell` gets a line about what is going on; `options` are those of
``unisono train`` (of a script ``replicas`` and, where it can be told, ``threads``). All raise `ConfigError` for a wrong
setting, `DataError` where a recipe's data is missing or not what is pinned, `WorkerFailed` where a worker fails, and
`RunStopped` or KeyboardInterrupt where they are asked to stop.
"""
