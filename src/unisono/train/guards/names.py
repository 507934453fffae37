"""Names that people look for on a run or a trainer, as other libraries have them, each answered with what there is."""

from typing import TYPE_CHECKING, NoReturn

from unisono.system.hints import OF_A_WORLD, nearest

_SAVES = "it saves by itself, with out=: Run(out=..., checkpoint_every=...); unisono.load_weights reads it"
_RESUMES = "the same out= goes on where the run stands; run.load_weights(path) fills a model before the first step"
_STEPS = "run.step(batch, lambda micro: loss) computes the gradients, adds them up and steps the optimizer"
_FITS = "unisono.Trainer(run, model, optimizer, loss=...).fit(train_set, epochs=..., batch_size=...)"
_COLLECTIVES = "unisono.collectives.all_reduce(tensor); metrics are summed over all ranks by run.evaluate"
_WAITS = "run.transport.barrier(), which all ranks call"
_CLIPS = "Run(clip_norm=1.0), or clip_value=: every step clips the gradient of the whole batch"
_COUNTS = "batch.step (from 1) and batch.epoch (from 0) in the loop; a callback is given loop.step and loop.epoch"
_RECORDS = "run.record(name=value) after a step, for metrics.jsonl (watch and report draw it) and result.json"
_SAME = "run.prepare returns the model itself, not a wrapper"
_PLACE = "run.device; micro-batches are moved there by the run"
_ACCUMULATES = "Run(replicas=8) on one process is eight micro-batches a step: raise batch_size= and replicas= together"
ANSWERS = {
    **dict.fromkeys(("save", "save_checkpoint", "save_state", "save_model", "checkpoint"), _SAVES),
    **dict.fromkeys(("load", "load_checkpoint", "load_state", "resume", "restore"), _RESUMES),
    **dict.fromkeys(("backward", "zero_grad", "optimizer_step", "manual_backward"), _STEPS),
    **dict.fromkeys(("accumulate", "no_sync", "no_backward_sync", "sync_gradients"), _ACCUMULATES),
    **dict.fromkeys(("clip_grad_norm_", "clip_grad_value_", "clip_gradients"), _CLIPS),
    **dict.fromkeys(("all_reduce", "reduce", "gather", "all_gather", "gather_for_metrics"), _COLLECTIVES),
    **dict.fromkeys(("barrier", "wait_for_everyone"), _WAITS),
    **dict.fromkeys(("fit", "train"), _FITS),
    **dict.fromkeys(("log", "log_metrics", "log_dict", "logger", "init_trackers", "trackers"), _RECORDS),
    **dict.fromkeys(("test", "validate", "eval"), "trainer.evaluate(test_set), run.evaluate(data, predict, metrics)"),
    **{name: f"run.world.{ours}" for name, ours in OF_A_WORLD.items()},
    **{name: f"run.world.{name}" for name in ("rank", "world_size", "local_rank", "local_world_size")},
    **dict.fromkeys(("is_leader", "is_main_process", "is_global_zero", "print"), "if run.world.is_leader: print(...)"),
    **dict.fromkeys(("metrics", "callback_metrics", "logged_metrics", "history"), "run.result()['metrics']"),
    **dict.fromkeys(("global_step", "current_epoch", "num_steps", "step_count"), _COUNTS),
    **dict.fromkeys(("unwrap_model", "unwrap", "module"), _SAME),
    **dict.fromkeys(("to_device", "device_count"), _PLACE),
    **dict.fromkeys(("setup", "setup_model", "setup_dataloaders"), "run.prepare(model, optimizer)"),
    **dict.fromkeys(("end_training", "free_memory", "finish"), "run.close()"),
    **dict.fromkeys(("seed_everything", "set_seed"), "Run(seed=...), before the model is built"),
    "autocast": 'Run(precision="bf16"), or "fp16": loss and evaluation are under autocast',
    "launch": "unisono.launch(function, workers=...), or unisono run -n 4 script.py",
}
"""By name, what to write."""
SET_BY = {
    **{
        name: name
        for name in (
            "seed", "replicas", "out", "clip_norm", "clip_value", "non_finite", "strategy", "precision", "threads",
            "checkpoint_every", "checkpoints", "device", "settings", "allow_drift", "detail", "witness", "transport",
        )
    },
    "directory": "out", "clipping": "clip_norm",
}  # fmt: skip
"""What only the making of a run sets, by attribute: the keyword for it."""


class AnswersNames:
    """Answers for attributes that the class has not."""

    if not TYPE_CHECKING:  # mypy would take any name for one that there is

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is in place of `name`."""
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            answer = ANSWERS.get(name)
            hint = "" if name.startswith("_") else nearest(name, known) if answer is None else f" Hint: {answer}."
            # with a name of its own, so that Python adds no guess among private names
            raise AttributeError(f"a {type(self).__name__} has no {name!r}.{hint}", name=name, obj=None)


def refuse_setting(name: str, value: object) -> None:
    """Refuse (`AttributeError`) to assign what a run was made with: nothing would look at it again."""
    if (keyword := SET_BY.get(name)) is not None:
        raise AttributeError(
            f"run.{name} = {value!r:.60} comes too late and would change nothing: it is set when the run is made. "
            f"Hint: unisono.Run({keyword}={value!r:.60}).",
            name=name,
            obj=None,
        )
