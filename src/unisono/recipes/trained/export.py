"""A trained model in the forms that other programs read: ONNX for images, a Hugging Face folder for a language model.

The language model is a Llama in all but the names of its weights: rotary positions over halves of a head, RMSNorm,
SwiGLU, no biases, tied embeddings. So its folder needs no code of ours. Other models have no counterpart there.
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from unisono.data.sets.corpus import END, SEPARATOR, load_tokeniser
from unisono.errors import ConfigError
from unisono.recipes.trained.load import TrainedModel
from unisono.system.directory import Directory
from unisono.system.disk import explained
from unisono.system.files import replace_file
from unisono.system.loading import needing

_LLAMA = {
    "first.weight": "input_layernorm.weight", "second.weight": "post_attention_layernorm.weight",
    "join.weight": "self_attn.o_proj.weight", "down.weight": "mlp.down_proj.weight",
}  # fmt: skip
_CUT = {
    "qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}


def export_onnx(model: TrainedModel, path: Path) -> None:
    """Write a model of images as ONNX, with its classes and its normalisation in the file's metadata.

    Input ``images``, float32 (n, channels, height, width), normalised as in the run; output ``scores``, (n, classes).

    Raises:
        ConfigError: Not a model of images, no such directory, or the libraries are missing.
        CheckpointError: The disk does not take it.
    """
    if model.file.inputs["kind"] != "images":
        raise ConfigError(
            f"recipe {model.recipe!r} packs texts of any length into one row, which ONNX has no input for: expected a "
            "model of images. Hint: FILE.safetensors."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"expected an existing directory for {path}, there is no {path.parent}.")
    with needing("onnx", "torch writes ONNX by onnxscript: "):
        import onnxscript  # noqa: F401 - what torch translates with
    height, width, channels = model.file.inputs["shape"]
    logging.disable(logging.WARNING)  # torch tells of the inside of its exporter, in warnings and in its log
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                model.module, (torch.zeros(2, channels, height, width, device=next(model.module.parameters()).device),),
                input_names=["images"], output_names=["scores"], dynamic_shapes=({0: torch.export.Dim("n")},),
                verbose=False, dynamo=True,
            )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    assert program is not None
    program.model.metadata_props.update(classes=json.dumps(model.classes), inputs=json.dumps(model.file.inputs))
    with explained(path):
        replace_file(path, program.model_proto.SerializeToString())


def export_folder(model: TrainedModel, folder: Path) -> None:
    """Write a language model as a folder that ``transformers`` opens: ``AutoModelForCausalLM``, ``AutoTokenizer``.

    Args:
        model: From `unisono.load`.
        folder: Made; must be new or empty.

    Raises:
        ConfigError: Not a language model, or something is there.
        CheckpointError: The disk does not take it.
    """
    if model.file.inputs["kind"] != "tokens":
        raise ConfigError(
            f"transformers knows no model like that of recipe {model.recipe!r}: expected a language model (recipe lm) "
            "for a folder. Hint: FILE.safetensors, or FILE.onnx for images."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"expected a new or empty folder, found something at {folder}.")
    tokeniser = load_tokeniser(model.file.files["tokeniser.json"])
    from tokenizers.processors import TemplateProcessing

    tokeniser.post_processor = TemplateProcessing(single=f"{SEPARATOR} $A", special_tokens=[(SEPARATOR, END)])
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SEPARATOR, "eos_token": SEPARATOR,
        "model_max_length": model.file.model["shape"]["length"], "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    contents = {
        "model.safetensors": save(_as_llama(model.module.state_dict()), {"format": "pt"}),
        "tokenizer.json": tokeniser.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(about, indent=1).encode(),
        "config.json": json.dumps(_llama_config(model.file.model), indent=1).encode(),  # last: then all are there
    }
    with explained(folder, sum(map(len, contents.values()))), Directory.make(folder) as home:
        for name, content in contents.items():
            home.replace(name, content)


def _as_llama(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a `GPT`'s weights under Llama's names."""
    found = {"model.embed_tokens.weight": weights["tokens.weight"], "model.norm.weight": weights["last.weight"]}
    for name, weight in weights.items():
        if not name.startswith("blocks."):
            continue
        _, number, inner = name.split(".", 2)
        names = _CUT.get(inner) or (_LLAMA[inner],)
        for part, piece in zip(names, weight.chunk(len(names)), strict=True):
            found[f"model.layers.{number}.{part}"] = piece
    return {name: weight.detach().cpu().contiguous().clone() for name, weight in found.items()}


def _llama_config(given: dict[str, Any]) -> dict[str, Any]:
    shape = given["shape"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": given["vocabulary"],
        "hidden_size": shape["width"], "intermediate_size": shape["inner"], "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"], "num_key_value_heads": shape["heads"],
        "head_dim": shape["width"] // shape["heads"], "max_position_embeddings": shape["length"],
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "bos_token_id": END, "eos_token_id": END, "dtype": "float32",
    }  # fmt: skip
