"""Names that people look for on a run or a trainer, as other libraries have them, each answered with what there is."""

from typing import TYPE_CHECKING, NoReturn

from unisono.system.hints import nearest

_SAVES = "it saves by itself, with out=: Run(out=..., checkpoint_every=...); unisono.load_weights reads it"
_RESUMES = "the same out= goes on where the run stands; run.load_weights(path) fills a model before the first step"
_STEPS = "run.step(batch, lambda micro: loss) computes the gradients, adds them up and steps the optimizer"
_FITS = "unisono.Trainer(run, model, optimizer, loss=...).fit(train_set, epochs=..., batch_size=...)"
_COLLECTIVES = "unisono.collectives.all_reduce(tensor); metrics are summed over all ranks by run.evaluate"
ANSWERS = {
    **dict.fromkeys(("save", "save_checkpoint", "save_state", "save_model", "checkpoint"), _SAVES),
    **dict.fromkeys(("load", "load_checkpoint", "load_state", "resume", "restore"), _RESUMES),
    **dict.fromkeys(("backward", "zero_grad", "clip_grad_norm_", "accumulate", "no_sync", "autocast"), _STEPS),
    **dict.fromkeys(("barrier", "all_reduce", "reduce", "gather", "wait_for_everyone"), _COLLECTIVES),
    **dict.fromkeys(("fit", "train"), _FITS),
    **dict.fromkeys(("log", "log_metrics", "log_dict"), "run.record({'name': value}), for result.json"),
    **dict.fromkeys(("test", "validate", "eval"), "evaluate(...)"),
    **dict.fromkeys(("rank", "world_size", "local_rank"), "run.world has it"),
    **dict.fromkeys(("is_leader", "is_main_process", "is_global_zero", "print"), "if run.world.is_leader: print(...)"),
    **dict.fromkeys(("metrics", "callback_metrics", "logged_metrics", "history"), "run.result()['metrics']"),
}
"""By name, what to write."""


class AnswersNames:
    """Answers for attributes that the class has not."""

    if not TYPE_CHECKING:  # mypy would take any name for one that there is

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is in place of `name`."""
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            answer = ANSWERS.get(name)
            hint = "" if name.startswith("_") else nearest(name, known) if answer is None else f" Hint: {answer}."
            raise AttributeError(f"a {type(self).__name__} has no {name!r}.{hint}")
