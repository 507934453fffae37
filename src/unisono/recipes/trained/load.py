"""A run's model, ready to call: `load` builds it, fills it with a checkpoint's weights, and answers questions."""

import importlib
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from unisono.checkpoint.interchange import load_weights
from unisono.checkpoint.manifest import read_manifest
from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.process_groups.transport import device_of
from unisono.data.loader import Fetcher
from unisono.determinism.seeding import mix
from unisono.errors import CheckpointError, ConfigError
from unisono.metrics.base import Metric
from unisono.options.keywords import answers_keywords
from unisono.options.quantities import COUNT, SEED, STEPS, TOKENS, shown
from unisono.recipes.catalog import find
from unisono.recipes.trained.model_file import FILE_NAME, ModelFile
from unisono.strategies.parts.streams import capture, restore
from unisono.strategies.precision import MixedPrecision
from unisono.train.evaluate import BATCH_SIZE, evaluate
from unisono.train.predict import Outputs
from unisono.train.run_directory.upkeep import choose_checkpoint, describe_checkpoints, find_checkpoints
from unisono.world import World

_ATTEMPTS = 3
"""A run that goes on may remove a checkpoint between the choice and the reading."""

Tell = Callable[[str], None]


@final
class TrainedModel:
    """A model with its weights, in evaluation mode, and what it takes to ask it; made by `unisono.load`.

    Called like a function, it is the module itself: tensors in, tensors out.

    Attributes:
        module: The plain ``torch.nn.Module``, without gradients.
        recipe: The name of the recipe that trained it.
        classes: Names of the classes, by number; none for a language model.
        step: Steps that its weights had been trained.
        file: What the run says of it.
    """

    def __init__(self, module: nn.Module, file: ModelFile, step: int, device: torch.device) -> None:
        self.module, self.recipe, self.classes, self.step, self.file = module, file.recipe, file.classes, step, file
        self._device = device

    def __repr__(self) -> str:
        return f"TrainedModel({self.recipe}, step {self.step}, {len(self.classes)} classes)"

    def __call__(self, *args: Any) -> Any:
        return self.module(*args)

    def __getattr__(self, name: str) -> Any:
        """Say where it is, to who looks here for what a torch module has (`model.parameters()`)."""
        hint = f" Hint: model.module.{name}" if name != "module" and hasattr(self.module, name) else ""
        raise AttributeError(f"a model of unisono.load() has no {name!r}: the torch module is model.module.{hint}")

    @answers_keywords
    def predict(
        self, items: Iterable[Any], *, top: int = 3, resize: bool = False, text_column: str | None = None
    ) -> list[dict[str, Any]]:
        """Return what the model says of each item: read, cut and normalised as in the run's evaluations.

        Args:
            items: Images: paths, Pillow's images, uint8 arrays (height, width[, 1 or 3]). Texts: texts, or a ``Path``
                of a file: the whole of it, each row of a table (``.csv``, ``.tsv``, ``.jsonl``), each document for a
                language model.
            top: How many classes are told, the likeliest first.
            resize: Whether images of another size than in training are resized.
            text_column: Of the texts in a table; None: that of the training.

        Returns:
            For each item ``item`` (its name), ``class``, ``probability``, and ``top``: the likeliest classes'
            probabilities by name. Of a language model: ``item``, ``tokens`` (its end counts), ``perplexity``.

        Raises:
            DataError: An item cannot be read, is empty, or is no image of the size that the model knows; names it.
            ConfigError: ``top`` is below 1, or there are no items.
        """
        from unisono.recipes.trained import inputs

        is_one = isinstance(items, str | bytes | Path) or not isinstance(items, Iterable)
        is_one = is_one or getattr(items, "ndim", None) == 2  # a grey image
        top, chosen = COUNT.take("top", top), [] if is_one else list(items)
        if not chosen:
            got = f"one {type(items).__name__}" if is_one else "none"
            raise ConfigError(f"expected a list of items, got {got}. Hint: predict([item]).")
        kind = self.file.inputs["kind"]
        if kind == "images":
            names, dataset = inputs.images(self.file, chosen, resize=resize)
            return self._ranked(names, self._scores(dataset), top)
        names, texts = inputs.texts(self.file, chosen, text_column)
        if kind == "tokens":
            return [{"item": name, **self._read(text)} for name, text in zip(names, texts, strict=True)]
        ordered = inputs.tokens_of(self.file, texts).for_evaluation(BATCH_SIZE)
        scores = self._scores(ordered)
        return self._ranked(names, scores[np.argsort(ordered.chosen)], top)

    @answers_keywords
    def write(self, text: str, *, tokens: int = 64, top: int = 50, seed: int = 0) -> str:
        """Return what a language model adds to a text.

        Args:
            text: Its beginning; may be empty.
            tokens: At most so many; fewer where the model ends the text.
            top: From how many of the likeliest tokens the next one is drawn; 1: always the likeliest.
            seed: What is drawn is a function of it, of the model and of the text.

        Raises:
            ConfigError: It is no language model, or a number is out of range.
        """
        if self.file.inputs["kind"] != "tokens":
            raise ConfigError(f"expected a language model (recipe lm) to write, got one of recipe {self.recipe!r}.")
        from unisono.data.sets.corpus import END

        tokens, top = TOKENS.take("tokens", tokens), COUNT.take("top", top)
        generator = torch.Generator().manual_seed(mix(SEED.take("seed", seed), "written", 0) >> 1)
        tokeniser, module = self._tokeniser(), self.module
        start = [END, *tokeniser.encode(text).ids]
        added = module.write(start, tokens, end=END, generator=generator, top=top)  # type: ignore[operator]
        written: str = tokeniser.decode(added)
        return written

    def _read(self, text: str) -> dict[str, Any]:
        """Return tokens and perplexity of one text, as the training's evaluation finds them."""
        from unisono.data.sets.corpus import END
        from unisono.data.tokens.token_file import TokenFile
        from unisono.recipes.lm import TokenPerplexity, WithTargets

        numbers = [*self._tokeniser().encode(text).ids, END]
        with tempfile.TemporaryDirectory(prefix="unisono-") as place:
            path = Path(place) / "text.bin"
            path.write_bytes(np.array(numbers, dtype="<u2").tobytes())
            rows = TokenFile(path, vocabulary=self.file.model["vocabulary"], cache=place)
            packed = rows.packed(self.file.model["shape"]["length"], end_of_text=END)
            found = self._evaluate(WithTargets(packed), lambda x: (self.module(x), x.targets), TokenPerplexity())
        return {"tokens": len(numbers), **found}

    def _tokeniser(self) -> Any:
        from unisono.data.sets.corpus import load_tokeniser

        return load_tokeniser(self.file.files["tokeniser.json"])

    def _scores(self, dataset: Any) -> Tensor:
        """Return the scores (n, classes) of a data set's samples, in its order."""
        kept = Outputs(len(dataset), BATCH_SIZE, LoopbackTransport())

        def keep(x: Any) -> tuple[None, None]:
            kept.add(self.module(x))
            return None, None

        self._evaluate(dataset, keep)
        scores: Tensor = kept.gather()
        return scores

    def _evaluate(self, dataset: Any, ask: Callable[[Any], Any], metric: Metric | None = None) -> dict[str, float]:
        """Evaluate as a run does; the generators of the caller's program stay as they were."""
        metrics: Mapping[str, Metric] = {} if metric is None else {"perplexity": metric}
        streams = capture(self._device)
        try:
            return evaluate(
                self.module, Fetcher(dataset, 0), lambda micro: ask(micro.x), metrics, transport=LoopbackTransport(),
                device=self._device, batch_size=BATCH_SIZE,
            )  # fmt: skip
        finally:
            restore(streams, self._device)

    def _ranked(self, names: list[str], scores: Tensor, top: int) -> list[dict[str, Any]]:
        if scores.shape[1] != len(self.classes):
            raise ConfigError(f"{FILE_NAME} names {len(self.classes)} classes, the model knows {scores.shape[1]}.")
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :top]
        likely = scores.double().softmax(dim=1).gather(1, order)
        found = []
        for name, which, chances in zip(names, order.tolist(), likely.tolist(), strict=True):
            told = {self.classes[number]: chance for number, chance in zip(which, chances, strict=True)}
            found.append({"item": name, "class": self.classes[which[0]], "probability": chances[0], "top": told})
        return found


@answers_keywords
def load(run: str | Path, *, checkpoint: str | int = "last", device: str = "cpu") -> TrainedModel:
    """Return the model that a recipe has trained, with its weights, in evaluation mode, ready to call.

    Needs the run directory alone: neither the data nor the options. A run that still goes on is read as it stands.

    Args:
        run: The run directory.
        checkpoint: ``last``: the newest that is whole. ``best``: the one with the best test accuracy (perplexity, of a
            language model). Or the step of one that is kept.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        The model. A call goes to its ``module``; ``classes`` are the names of the classes, ``predict(items)`` answers
        for files, images or texts, ``write(text)`` goes on with a text.

    Raises:
        ConfigError: No recipe's run, or none with such a checkpoint.
        CheckpointError: It is damaged, or all are.

    Example:
        >>> model = unisono.load("runs/pets")  # doctest: +SKIP
        >>> model.predict(["cat.png"])[0]["class"]
        'cat'
    """
    return open_model(Path(run), checkpoint, device, lambda line: warnings.warn(line, stacklevel=7))


def open_model(run: Path, checkpoint: str | int, device: str, tell: Tell) -> TrainedModel:
    """As `load`; `tell` takes a line about each checkpoint that is passed over."""
    place = device_of(World.current(), device)
    file = ModelFile.read(run)
    module = build(file, run)
    found = find_checkpoints(str(run))
    for attempt in range(_ATTEMPTS):
        chosen = _choose(found, checkpoint, file, tell)
        try:
            step = read_manifest(chosen).step
            load_weights(module, chosen)
            break
        except CheckpointError:
            if chosen.exists() or attempt == _ATTEMPTS - 1:
                raise
    if file.precision != "fp32":
        _under(MixedPrecision(file.precision, place.type), module)
    return TrainedModel(module.eval().requires_grad_(False).to(place), file, step, place)


def build(file: ModelFile, run: Path) -> nn.Module:
    """Return the model that a run's file describes, without its weights."""
    make = importlib.import_module(f"unisono.recipes.{find(file.recipe).name}").build
    state = torch.get_rng_state()
    try:
        module: nn.Module = make(**file.model)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"{run / FILE_NAME} describes no model of recipe {file.recipe!r}: {error}.") from error
    finally:
        torch.set_rng_state(state)
    return module


def _under(precision: MixedPrecision, module: nn.Module) -> nn.Module:
    """Return a model whose calls compute in a run's precision."""
    plain = module.forward
    precise = precision.around(lambda inputs: plain(*inputs))
    module.forward = lambda *inputs: precise(inputs)
    return module


def _choose(found: Path, which: str | int, file: ModelFile, tell: Tell) -> Path:
    """Return the checkpoint that is meant, verified."""
    if which == "last":
        return choose_checkpoint(found, None, tell)
    if which != "best":
        if isinstance(which, str) and not which.isdecimal():
            raise ConfigError(f"expected checkpoint as last, best or a step, got {shown(which)}.")
        return choose_checkpoint(found, STEPS.take("checkpoint", int(which) if isinstance(which, str) else which), tell)
    metric, mode = find(file.recipe).best
    rows = reversed(describe_checkpoints(found, is_thorough=False))  # of equal ones the newest
    scored = {row["metrics"][metric]: row["step"] for row in rows if metric in row.get("metrics", {})}
    if not scored:
        raise ConfigError(f"expected a checkpoint with {metric}, found none in {shown(str(found))}. Hint: last.")
    return choose_checkpoint(found, scored[max(scored) if mode == "max" else min(scored)], tell)
