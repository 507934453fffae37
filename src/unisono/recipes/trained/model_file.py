"""``model.json``: what a recipe's run says of its model, so that it can be used without its data or its options.

In: what the recipe trained with. Out: the file and, beside it, the vocabulary. Imports no torch.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.observe.run_json import object_in
from unisono.observe.run_place import no_run
from unisono.options.quantities import shown
from unisono.recipes.catalog import Options
from unisono.system.directory import Directory
from unisono.system.disk import explained

FILE_NAME = "model.json"
_KINDS = {
    "model": dict,
    "inputs": dict,
    "classes": list,
    "files": dict,
    "recipe": str,
    "precision": str,
    "threads": int,
}
_INPUTS = {"images": {"shape"}, "texts": {"max_length", "encoding", "text_column"}, "tokens": {"kind"}}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """What a trained model needs beside its weights."""

    recipe: str  #: Whose ``build`` makes the model.
    model: dict[str, Any]  #: What ``build`` is called with.
    #: How something from outside becomes what the model is called with: see `unisono.recipes.trained.inputs`.
    inputs: dict[str, Any]
    classes: tuple[str, ...] = ()  #: Names of the classes, by number; none for a language model.
    precision: str = "fp32"  #: In which it computes: ``fp32``, ``bf16`` or ``fp16``.
    threads: int = 1  #: Threads that the evaluations were computed with.
    files: dict[str, bytes] = field(default_factory=dict)  #: Further files by name, such as ``vocabulary.json``.

    @classmethod
    def of(
        cls,
        options: Options,
        *,
        model: dict[str, Any],
        inputs: dict[str, Any],
        classes: Iterable[str] = (),
        files: dict[str, bytes] | None = None,
    ) -> "ModelFile":
        """Return what a recipe with these options says of its model; the arguments are attributes."""
        return cls(
            recipe=options.recipe, precision=options.precise, threads=options.threads, model=model, inputs=inputs,
            classes=tuple(classes), files=files or {},
        )  # fmt: skip

    def save(self, run: Path) -> None:
        """Write it into a run directory, where it is not there yet; the process that holds it calls this."""
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}
        described = (json.dumps(asdict(self) | {"files": hashes}, indent=1) + "\n").encode()
        with explained(run / FILE_NAME), Directory.make(run) as home:
            if home.read(FILE_NAME) != described:
                for name, content in [*self.files.items(), (FILE_NAME, described)]:  # which says that all are there
                    home.replace(name, content)

    @classmethod
    def read(cls, run: Path) -> "ModelFile":
        """Return what a run directory says of its model.

        Raises:
            ConfigError: It is no run directory, no recipe's, or the files are not those that the run has written.
        """  # noqa: DOC501 - a function makes the error
        if not run.is_dir():
            raise no_run(run)
        with Directory.open(run) as home:
            found = object_in(run / FILE_NAME, lambda: home.read(FILE_NAME))
            if found is None:
                program = object_in(run / "program.json", lambda: home.read("program.json")) or {}
                if isinstance(script := program.get("script"), str):
                    raise ConfigError(
                        f"{run} holds no {FILE_NAME}: it was trained by {script!r}, and only that program can "
                        f"build its model. Hint: build the model, unisono.load_weights(model, {str(run)!r}) fills it; "
                        "then call it, or torch.onnx.export(model, ...)."
                    )
                raise ConfigError(
                    f"{run} holds no {FILE_NAME}: no recipe was trained there, or by an older version, or no step is "
                    "done. Hint: repeat the command that trained a recipe, and it is written; "
                    "unisono.load_weights(model, RUN) fills a model of your own."
                )
            names = {each.name for each in fields(cls)}
            is_ours = found.keys() == names and all(isinstance(found[name], kind) for name, kind in _KINDS.items())
            if not is_ours or not _INPUTS.get(found["inputs"].get("kind"), {"-"}) <= found["inputs"].keys():
                raise _changed(run, FILE_NAME)
            contents = {}
            for name, sha256 in found["files"].items():
                content = home.read(name) if Path(name).name == name else None
                if content is None or hashlib.sha256(content).hexdigest() != sha256:
                    raise _changed(run, name)
                contents[name] = content
        return cls(**found | {"classes": tuple(map(str, found["classes"])), "files": contents})

    def listed_classes(self, most: int = 60) -> str:
        """Return the names of the classes on one line of about so many characters."""
        shown: list[str] = []
        for name in ("".join(each if each.isprintable() else ascii(each)[1:-1] for each in c) for c in self.classes):
            if shown and len(", ".join([*shown, name])) > most:
                return f"{', '.join(shown)} and {len(self.classes) - len(shown)} more"
            shown.append(name)
        return ", ".join(shown)


def _changed(run: Path, name: str) -> ConfigError:
    return ConfigError(
        f"{run}: {shown(name)} is not what the run has written. Hint: remove {FILE_NAME} and repeat the run's command."
    )
