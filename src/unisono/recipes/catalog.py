"""The list of recipes and the options they share; imports no torch, so the launcher can check everything first."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.checkpoint.policy import CheckpointPolicy
from unisono.data.plans.batch_schedule import BatchSchedule
from unisono.errors import ConfigError
from unisono.launchers.program_files import instead_of_recipe
from unisono.options.fields import DATA, JOB, OUTPUT, REPRODUCIBILITY, check, option, options_of
from unisono.options.quantities import (
    BATCH,
    BATCHES,
    BYTES,
    CLIP,
    COUNT,
    DECAY,
    EPOCHS,
    KEPT,
    LEARNING_RATE,
    LOADERS,
    REPLICAS,
    SAMPLES,
    SEED,
    STEPS,
    THREADS,
    TOKENS,
)
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.strategies.precisions import PRECISIONS, precision_of
from unisono.system.hints import nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A recipe's hyper-parameters under a name; the numbers are in the recipe's file."""

    name: str  #: For ``--preset``.
    epochs: int  #: Default.
    batch_size: int  #: Default: samples per optimizer step over all workers.


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One ready-made job."""

    name: str  #: As typed after ``unisono train``.
    summary: str  #: One line for ``--help``.
    models: tuple[str, ...]  #: Names for ``--model``; the first is the default.
    presets: tuple[Preset, ...]  #: The first is the default.
    replicas: int  #: Default.
    #: The metric whose best checkpoint is kept beside the newest ones, and which is best.
    best: tuple[str, str] = ("test_accuracy", "max")

    def preset(self, name: str | None) -> Preset:
        """Return a preset by name, the default for None; `ConfigError` where there is none."""
        names = [preset.name for preset in self.presets]
        if name is not None and name not in names:
            raise ConfigError(f"recipe {self.name!r} has no preset {name!r}; it has {', '.join(names)}.")
        return self.presets[names.index(name) if name else 0]


_TUNED = ("mnist", "imdb", "text", "images", "lm")
_TEXTS, _IMAGES = ("imdb", "text"), ("mnist", "images")
OWN_CLASSES = ("text", "images")
"""Recipes whose data says what the classes are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a recipe is run with; each field says what it is."""

    recipe: str
    model: str = option(text="One of the recipe's models.", usual="its first", group=JOB, basic=True)
    preset: str | None = option(
        None, "The recipe's hyper-parameters by name, see docs/data.md.", usual="its first", group=JOB, basic=True,
        scored=True,
    )  # fmt: skip
    epochs: int = option(text="Passes over the data.", of=EPOCHS, usual="the preset's", word="E", group=JOB, basic=True)
    batch_size: int = option(
        text="Samples per optimizer step, over all workers.", of=BATCH, usual="the preset's", word="B", group=JOB,
        basic=True,
    )  # fmt: skip
    batch_schedule: str | None = option(
        None, "Other batch sizes from so many steps on, as 1000:128,5000:256.", usual="one size", word="STEPS:B,...",
        group=JOB, scored=True,
    )  # fmt: skip
    last: str | None = option(
        None, "Samples that do not fill an epoch's last batch: drop them, or join them to the one before.", "drop",
        "join", usual="a short batch", group=JOB, scored=True,
    )  # fmt: skip
    clip_norm: float | None = option(
        None, "Largest norm of the gradient, in place of the preset's.", of=CLIP, group=JOB, scored=True
    )
    clip_value: float | None = option(
        None, "Largest magnitude of the gradient's elements, in place of a norm.", of=CLIP, group=JOB, scored=True
    )
    lr: float | None = option(
        None, "Learning rate in place of the preset's.", of=LEARNING_RATE, recipes=("digits", *_TUNED), scored=True
    )
    precision: str = option(
        "fp32", "Compute under autocast, with any strategy; fp16 scales the loss; other bits.", *PRECISIONS, group=JOB
    )
    bf16: bool = option(False, "The same as --precision bf16.", recipes=_TUNED)
    compile: bool = option(False, "Send the model through torch.compile; other bits.", recipes=_TUNED, scored=True)
    augment: str | None = option(
        None, "Image changes: flip,shift=2,rotate=10,crop=0.8 or none.", word="LIST", recipes=_IMAGES, scored=True
    )
    image_size: str | None = option(
        None, "Resize own images.", usual="all must have one size", word="HxW", recipes=("images",), scored=True
    )
    max_length: int | None = option(
        None, "Cut longer texts off, in tokens; says how many.", of=TOKENS, usual="never", recipes=_TEXTS, scored=True
    )
    length_pool: int | None = option(
        None, "Sort so many batches by text length; 0: none.", of=BATCHES, recipes=_TEXTS, scored=True
    )
    min_freq: int | None = option(
        None, "Least occurrences of a word that gets a number.", of=COUNT, recipes=_TEXTS, scored=True
    )
    data: str | None = option(
        None, "Directory or file with the data.", usual="a verified download", is_path=True, group=DATA, basic=True
    )
    limit: int | None = option(
        None, "Use at most K training and K test samples, spread evenly over the data.", of=SAMPLES, group=DATA,
        basic=True,
    )  # fmt: skip
    cache: str | None = None  #: Directory for downloads and prepared data; the user's cache directory where None.
    offline: bool = option(False, "Use downloads that are there, and no network.", group=DATA)
    num_workers: int = option(0, "Data loading processes per worker.", of=LOADERS, group=DATA)
    test_data: str | None = option(
        None, "Own data to evaluate on.", usual="every tenth", is_path=True, recipes=(*OWN_CLASSES, "lm"), scored=True
    )
    skip_broken: bool = option(
        False, "Leave out broken rows or images of own data, and count them.", recipes=OWN_CLASSES, scored=True
    )
    text_column: str | None = option(None, "Column of own texts.", usual="text", recipes=("text",), scored=True)
    label_column: str | None = option(None, "Column of their labels.", usual="label", recipes=("text",), scored=True)
    encoding: str | None = option(None, "Encoding of own texts.", usual="utf-8", recipes=("text",), scored=True)
    out: str | None = option(
        None, "Run directory; a run found there is resumed.", usual="nothing is kept", short="-o", word="DIR",
        is_path=True, group=OUTPUT, basic=True,
    )  # fmt: skip
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints.", of=STEPS, usual="an epoch", word="STEPS", group=OUTPUT, basic=True
    )
    log_every: int | None = option(
        None, "Steps between lines of metrics.jsonl.", of=STEPS, usual="50", word="STEPS", group=OUTPUT
    )
    eval_every: int | None = option(
        None, "Steps between evaluations.", of=STEPS, usual="an epoch", word="STEPS", group=OUTPUT
    )
    loss_average: float | None = option(
        None, "Decay of a moving average of the loss, logged as train/loss_ema.", of=DECAY, usual="none", group=OUTPUT
    )
    keep: int = option(2, "Newest checkpoints to leave.", of=KEPT, group=OUTPUT)
    keep_sparse: str | None = option(
        None, "Steps apart of checkpoints that stay for good.", usual="none", word="N|doubling", group=OUTPUT
    )
    keep_sparse_bytes: int | None = option(
        None, "What those may take on the disk.", of=BYTES, usual="no limit", word="BYTES", group=OUTPUT
    )
    detail: bool = option(False, "Record what each step is made of, for unisono diff.", group=OUTPUT)
    seed: int = option(0, "Seed of everything random.", of=SEED, word="S", group=REPRODUCIBILITY, basic=True)
    replicas: int = option(
        text="Logical workers; part of the result.", of=REPLICAS, word="V",
        usual="8; with another strategy than exact, the workers", group=REPRODUCIBILITY, basic=True,
    )  # fmt: skip
    threads: int = option(
        1, "Threads per process; part of the result.", of=THREADS, word="T", group=REPRODUCIBILITY, basic=True
    )
    allow_drift: bool = option(
        False, "Resume although software or CPU differ; recorded with the run.", group=REPRODUCIBILITY, basic=True
    )
    #: How gradients or parameters move, with its own options.
    strategy: StrategyOptions = ExactOptions()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        check(self, as_flags=True)
        Clipping(norm=self.clip_norm, value=self.clip_value)
        _ = self._checkpoints, self.sizes
        recipe = find(self.recipe)
        if self.model not in recipe.models:
            raise ConfigError(f"recipe {self.recipe!r} has no model {self.model!r}; it has {', '.join(recipe.models)}.")
        recipe.preset(self.preset)
        self.precise  # noqa: B018 - refuses two that differ
        for name, item in options_of(Options).items():
            if item.recipes and self.recipe not in item.recipes and self.given(name) is not None:
                told = f"recipe {self.recipe!r} has no use for {item.flag}, which is for {', '.join(item.recipes)}. "
                raise ConfigError(f"{told}Hint: leave it out, or: unisono train {item.recipes[0]} {item.flag} ...")

    def given(self, name: str) -> Any:
        """Return an option's value, None where it was left at its default."""
        value = getattr(self, name)
        return None if value is False else value

    def steps(self, num_samples: int) -> int:
        """Return the steps of all epochs over so many samples; `DataError` where an epoch has none."""
        from unisono.data.sampler import ExactSampler

        return ExactSampler(num_samples, self.sizes, last=self.last or "short").cuts.steps_of(self.epochs)

    @property
    def sizes(self) -> BatchSchedule:
        """The batch size of each step; `ConfigError` for a schedule that is none."""
        later: dict[int, int] = {}
        for part in (self.batch_schedule or "").split(",") if self.batch_schedule is not None else ():
            found = re.fullmatch("([0-9]{1,12}):([0-9]{1,12})", part)
            if found is None or int(found[1]) in {0, *later}:
                raise ConfigError(
                    f"expected --batch-schedule as STEPS:B,... with each number of steps once and above 0, got "
                    f"{self.batch_schedule!r}. Hint: 1000:128,5000:256; the size to begin with is --batch-size."
                )
            later[int(found[1])] = int(found[2])
        return BatchSchedule({0: self.batch_size} | later)

    @property
    def precise(self) -> str:
        """The precision, in whichever words; `ConfigError` where they say two things."""
        if self.bf16 and self.precision == "fp16":
            raise ConfigError("--precision fp16 and --bf16 say two things. Hint: leave --bf16 out.")
        return precision_of(self.strategy, "bf16" if self.bf16 else self.precision)

    @property
    def data_path(self) -> Path | None:
        """Where the user's data is, None for a download."""
        return None if self.data is None else Path(self.data)

    @property
    def test_path(self) -> Path | None:
        """Where the user's data for evaluation is, None for a part of the other."""
        return None if self.test_data is None else Path(self.test_data)

    @property
    def cache_path(self) -> Path | None:
        """Where downloads and prepared data are kept."""
        return None if self.cache is None else Path(self.cache)

    @property
    def preset_name(self) -> str:
        """The preset that is run."""
        return find(self.recipe).preset(self.preset).name

    @property
    def score(self) -> dict[str, Any]:
        """The part of the run's score that these options decide, as in ``score.json``."""
        names = ("seed", "replicas", "batch_size", "threads")
        settings = {"recipe": self.recipe, "model": self.model, "limit": self.limit}
        scored = (name for name, item in options_of(Options).items() if item.scored)
        settings |= {name: self.given(name) for name in scored if self.given(name) is not None}
        return {
            **{name: getattr(self, name) for name in names},
            **({} if self.precise == "fp32" else {"precision": self.precise}),
            "strategy": self.strategy.score(),
            "settings": settings,
        }

    def run_settings(self, *, clip_norm: float | None = None) -> dict[str, Any]:
        """Return the keyword arguments of `unisono.Run`; a preset's `clip_norm` gives way to what the options say."""
        shared = ("seed", "replicas", "out", "threads", "checkpoint_every", "allow_drift", "detail")
        chosen = {name: value for name, value in asdict(self).items() if name in shared}
        clipping = {name: getattr(self, name) for name in ("clip_norm", "clip_value") if self.given(name) is not None}
        chosen |= clipping or ({} if clip_norm is None else {"clip_norm": clip_norm})
        chosen |= {"strategy": self.strategy, "precision": self.precise, "checkpoints": self._checkpoints}
        return {**chosen, "settings": self.score["settings"]}

    @property
    def _checkpoints(self) -> CheckpointPolicy:
        best, mode = find(self.recipe).best
        kept = {name: getattr(self, name) for name in ("keep", "keep_sparse", "keep_sparse_bytes")}
        return CheckpointPolicy(best=best, best_mode=mode, **kept)


def find(name: str) -> Recipe:
    """Return a recipe by name; `ConfigError` names the nearest where there is none."""
    if name not in RECIPES:
        hint = ("" if "/" in name else nearest(name, RECIPES)) or f" Hint: {instead_of_recipe(name, RECIPES)}."
        raise ConfigError(f"expected one of the recipes {', '.join(RECIPES)}, got {name!r}.{hint}")
    return RECIPES[name]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits", summary="handwritten digits, 8x8, bundled with scikit-learn: seconds",
            models=("cnn",), presets=(Preset(name="default", epochs=20, batch_size=64),), replicas=8,
        ),
        Recipe(
            name="mnist", summary="handwritten digits, 28x28: the tutorials' SimpleCNN",
            models=("cnn",), replicas=8,
            presets=(
                Preset(name="best", epochs=8, batch_size=128),
                Preset(name="fast", epochs=1, batch_size=64),
                Preset(name="tutorial", epochs=10, batch_size=128),
            ),
        ),
        Recipe(
            name="imdb", summary="sentiment of film reviews: gated CNN, or a bag of words",
            models=("gcnn", "bag"), replicas=8,
            presets=(
                Preset(name="best", epochs=4, batch_size=128),
                Preset(name="fast", epochs=1, batch_size=256),
                Preset(name="article", epochs=1, batch_size=128),
            ),
        ),
        Recipe(
            name="text", summary="your own labelled texts: CSV, TSV, JSON lines or a folder per class",
            models=("gcnn", "bag"), replicas=8,
            presets=(Preset(name="default", epochs=5, batch_size=64),),
        ),
        Recipe(
            name="images", summary="your own labelled images: a folder per class, or NumPy arrays",
            models=("cnn",), replicas=8,
            presets=(Preset(name="default", epochs=10, batch_size=64),),
        ),
        Recipe(
            name="lm", summary="a language model: text files of your own, or the film reviews' text",
            models=("gpt",), replicas=8, best=("test_perplexity", "min"),
            presets=(
                Preset(name="small", epochs=1, batch_size=64),
                Preset(name="10m", epochs=3, batch_size=64),
                Preset(name="50m", epochs=3, batch_size=64),
            ),
        ),
    )
}  # fmt: skip
