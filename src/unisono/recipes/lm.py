"""A language model on texts of your own, or on the text of film reviews: a GPT, tokens by byte-pair encoding.

Whole documents are packed into rows, and held out for the perplexity. After every evaluation the model writes a few
lines, which are shown and kept in ``samples/`` of the run directory.
"""

import sys
from typing import Any, final

import torch
from torch import Tensor

import unisono
from unisono import callbacks
from unisono.data.sets.corpus import END, Corpus, load_tokeniser
from unisono.data.tokens.samples import PackedTokens, Rows
from unisono.determinism.seeding import mix
from unisono.recipes.catalog import Options
from unisono.recipes.execute import fit
from unisono.recipes.gpt import GPT, IGNORED, Micro, Shape, decay_groups
from unisono.recipes.lm_presets import PRESETS
from unisono.recipes.sources import corpus
from unisono.recipes.speed import tune
from unisono.recipes.trained.model_file import ModelFile
from unisono.system.directory import Directory

_SAMPLE_TOKENS = 64


@final
class WithTargets:
    """Packed rows whose targets the model itself looks at: x is a `Micro`."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.fingerprint = rows, rows.fingerprint

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Micro, Tensor]:
        return _with_targets(*self.rows[index])

    def fetch_micro_batch(self, indices: Any) -> tuple[Micro, Tensor]:
        """See `unisono.data.datasets.BatchedDataset`."""
        return _with_targets(*self.rows.fetch_micro_batch(indices))

    def fetch_keyed(self, indices: Any, *, seed: int, epoch: int) -> tuple[Micro, Tensor]:
        """See `unisono.data.datasets.KeyedDataset`."""
        return _with_targets(*self.rows.fetch_keyed(indices, seed=seed, epoch=epoch))


def _with_targets(x: Tensor | PackedTokens, y: Tensor) -> tuple[Micro, Tensor]:
    assert isinstance(x, PackedTokens)
    return Micro(*x, y), y


def mean_loss(losses: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all places of the rows: every token weighs the same, however full a micro-batch is."""
    return losses.sum() / targets.numel()


@final
class TokenPerplexity(unisono.Mean):
    """The exponential of the mean negative log-likelihood of the targets that are not ignored."""

    def update(self, output: Tensor, target: Tensor) -> None:
        kept = output[target != IGNORED]
        super().update(kept, kept)

    def compute(self) -> float:
        return torch.tensor(super().compute(), dtype=torch.float64).exp().item()


@final
class Samples(unisono.Callback):
    """Let the model write after every evaluation: shown, and in ``samples/step-N.txt`` of the run directory."""

    runs_on, draws = "leader", False

    def __init__(self, model: GPT, data: Corpus) -> None:
        self._model, self._tokeniser = model, load_tokeniser(data.tokeniser.read_bytes())

    def on_evaluation_end(self, loop: callbacks.Loop) -> None:
        generator = torch.Generator().manual_seed(mix(loop.run.seed, "written", loop.step) >> 1)
        was_training = self._model.training
        self._model.eval()
        tokens = self._model.write([END], _SAMPLE_TOKENS, end=END, generator=generator)
        self._model.train(was_training)
        text = self._tokeniser.decode(tokens)
        sys.stderr.write(f"step {loop.step} writes: {' '.join(text.split())}\n")
        if loop.run.directory is not None:
            with Directory.make(loop.run.directory / "samples") as home:
                home.replace(f"step-{loop.step:08}.txt", f"{text}\n".encode())


def build(vocabulary: int, shape: dict[str, int], dropout: float) -> GPT:
    """Return the model."""
    return GPT(vocabulary, Shape(**shape), dropout)


def train(options: Options) -> dict[str, Any]:
    """Run the recipe."""
    settings = PRESETS[options.preset_name]
    with unisono.Run(**options.run_settings(clip_norm=settings.clip_norm)) as run:
        data = corpus(options)
        file = ModelFile.of(
            options, model={"vocabulary": data.vocabulary, "shape": settings.shape, "dropout": settings.dropout},
            inputs={"kind": "tokens"}, files={"tokeniser.json": data.tokeniser.read_bytes()},
        )  # fmt: skip
        train_set, test_set = (
            WithTargets(
                unisono.TokenFile(path, vocabulary=data.vocabulary, cache=options.cache_path)
                .packed(settings.shape["length"], end_of_text=END)
            )
            for path in (data.train, data.test)
        )  # fmt: skip
        model = build(**file.model)
        lr = settings.lr if options.lr is None else options.lr
        optimizer = torch.optim.AdamW(decay_groups(model, settings.weight_decay), lr=lr, betas=(0.9, 0.95), fused=True)
        steps = options.steps(len(train_set))
        return fit(
            run, options, tune(model, options), optimizer, train_set, test_set, file=file, loss=mean_loss,
            scheduler=callbacks.warmup_cosine(
                optimizer, total_steps=steps, warmup_steps=min(steps - 1, round(settings.warmup * steps)),
                final_factor=0.1,
            ),
            metrics={"perplexity": TokenPerplexity()},
            callbacks=[Samples(model, data)], facts=data.facts,
        )  # fmt: skip
