"""What is known of errors that come up through a user's model: the line to write, by the words of torch (pure)."""

import re
from typing import Any

from torch import Tensor

from unisono.system.hints import OF_SHAPES

_CONVOLUTION = (
    "Hint: a convolution takes (samples, channels, height, width). For images without channels: images[:, None]; "
    "with channels last: images.transpose(0, 3, 1, 2); else write the data's number of channels into the first layer."
)
_DECIMALS = "Hint: this loss takes targets with decimals: labels.astype('float32') before ArrayDataset."
_RULES: tuple[tuple[type[Exception], str, str], ...] = (
    (
        TypeError,
        "^'tuple' object is not callable",
        "Hint: run.prepare() returns what it was given: model, optimizer = run.prepare(model, optimizer).",
    ),
    (
        TypeError,
        r"missing \d+ required positional arg|takes \d+ positional arg|(?<!tuple'|ensor') object is not callable",
        "Hint: run.step() calls the loss function with a micro-batch: lambda micro: loss(model(micro.x), micro.y).",
    ),
    (
        TypeError,
        "'Tensor' object is not callable",
        "Hint: run.step() calls the loss function with a micro-batch: lambda micro: loss(model(micro.x), micro.y); "
        "there loss is a function, not a result that has taken its name (loss = loss(...)).",
    ),
    (
        ValueError,
        "more than 1 value per channel",
        "Hint: batch statistics need two samples in every micro-batch. If it is the epoch's short last batch: "
        "run.loader(..., last='join') adds its samples to the batch before, last='drop' leaves them out. "
        "Else fewer replicas, a larger batch_size, or GroupNorm.",
    ),
    (
        RuntimeError,
        "backward through the graph a second time",
        "Hint: run.step() does backward itself, and keeps no graph. What was computed in another micro-batch, "
        "update or step: compute it again in this loss, or .detach() it.",
    ),
    (
        RuntimeError,
        "setStorage",
        "Hint: torch's FSDP frees a module's weights after its backward, so a loss that differentiates twice "
        "(a gradient penalty) needs another strategy, exact for instance.",
    ),
    (
        IndexError,
        "index out of range in self",
        "Hint: an index in the batch is negative, or not below the num_embeddings of an nn.Embedding. "
        "TokenFile(vocabulary=num_embeddings) names the token and its place in the file.",
    ),
    (
        Exception,
        "nference tensor",
        "Hint: the model keeps a tensor that it computed while evaluating. "
        "Call run.evaluate(..., inference_mode=False), or make it a buffer.",
    ),
    (
        RuntimeError,
        "expected target dtype to be Long",
        "Hint: classes are whole numbers: labels.astype('int64') before ArrayDataset, or micro.y.long() in the loss.",
    ),
    (
        RuntimeError,
        "multi-target not supported",
        "Hint: there is one class for each sample: labels of shape (n,). From a column: labels.squeeze(1).",
    ),
    (
        RuntimeError,
        r"only batches of spatial targets supported|Expected target size",
        "Hint: the model's outputs have more than (samples, classes). One class a sample: flatten before the last "
        "layer, x.flatten(1). One class a place, as a word: outputs of (samples, classes, places).",
    ),
    (
        RuntimeError,
        "for target with class probabilities",
        "Hint: give the class of each sample: labels.argmax(1). Rows of probabilities are float32. With classes given, "
        "the model's outputs are (samples, classes), not (samples,).",
    ),
    (
        ValueError,
        r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        "Hint: the model makes {0} rows of {1} samples. Flatten each sample alone: x.flatten(1).",
    ),
    (
        ValueError,
        "must be the same as input size|that is different to the input size",
        "Hint: outputs and targets need one shape: model(micro.x).squeeze(1) with targets of shape (n,).",
    ),
    (
        RuntimeError,
        r"size of tensor a \(\d+\) must match the size of tensor b",
        "Hint: two shapes do not go together. Of a loss: outputs and targets need one shape, (n,) or (n, k) both; for "
        "classes take cross_entropy(model(micro.x), micro.y), with one output for each class.",
    ),
    (
        RuntimeError,
        "Boolean value of Tensor with more than one value",
        "Hint: a loss of torch.nn is made first, and called then: nn.CrossEntropyLoss()(model(micro.x), micro.y).",
    ),
    (
        RuntimeError,
        "all elements of (?:input|target) should be between 0 and 1",
        "Hint: binary_cross_entropy takes probabilities; binary_cross_entropy_with_logits(model(micro.x), target) "
        "takes what a model without a last sigmoid makes. Targets are from 0 to 1 in both.",
    ),
    (TypeError, r"must be Tensor, not numpy\.", "Hint: the micro-batch holds tensors already: leave .numpy() out."),
    (RuntimeError, "can't be cast to the desired output type Long|Found dtype Long but expected Float", _DECIMALS),
    (RuntimeError, *OF_SHAPES),
    (RuntimeError, r"to have \d+ channels, but got|input to conv\dd, but got input of size", _CONVOLUTION),
    (
        RuntimeError,
        "arguments for embedding",
        "Hint: an embedding takes whole numbers: tokens.astype('int64') before ArrayDataset.",
    ),
    (
        AssertionError,
        "not compiled with CUDA",
        "Hint: leave .cuda() and .to('cuda') out: the run moves model and micro-batches to run.device.",
    ),
    (
        TypeError,
        r"got \(XY\b|not XY\b|'XY' object",
        "Hint: the model takes the inputs of a micro-batch, not all of it: model(micro.x).",
    ),
    (
        RuntimeError,
        r"softmax\w*\" not implemented for '(?:Long|Int)'",
        "Hint: outputs come first, then targets: cross_entropy(model(micro.x), micro.y); a Trainer gives them so.",
    ),
    (
        TypeError,
        "tuple indices must be integers or slices, not str",
        "Hint: the micro-batch is a pair: micro.x and micro.y.",
    ),
)
"""By kind and words of an error: what to write, with the groups of the words."""

_CLASS_LOSSES = ("cross_entropy", "nll_loss")
_OTHER_DTYPE = re.compile(
    r"have (?:the )?same dtype|type .* should be the same|does not match weight dtype|must share same datatype|"
    r"expected scalar type"
)
_FLOATS = {
    "float64": "NumPy makes float64, and weights are float32. Hint: images.astype('float32') before ArrayDataset, "
    "or micro.x.float() in the loss.",
    "uint8": "bytes are no numbers with decimals. Hint: images.astype('float32') / 255 before ArrayDataset.",
}
_WHOLE = "whole numbers go into an nn.Embedding alone. Hint: .astype('float32') before ArrayDataset."


def fields_of(data: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of what a micro-batch holds, by ``x``, ``y`` or a key; of other kinds than pairs, too."""
    named = data if isinstance(data, dict) else {}
    if isinstance(data, tuple) and (names := getattr(data, "_fields", ())):
        named = dict(zip(names, data, strict=True))
    return {
        str(name): (str(value.dtype).removeprefix("torch."), tuple(value.shape))
        for name, value in named.items()
        if hasattr(value, "dtype") and not getattr(value, "is_nested", False) and hasattr(value, "shape")
    }


def hints(error: Exception, data: Any) -> list[str]:
    """Return what to write for an error that a loss function raised over a micro-batch's `data`."""
    text = str(error)
    found = [
        hint.format(*match.groups())
        for kind, words, hint in _RULES
        if isinstance(error, kind) and (match := re.search(words, text))
    ]
    if isinstance(error, IndexError) and re.search(r"Target -?\d+ is out of bounds", text):
        found.append(
            f"{_classes_of(error)}Hint: classes count from 0, and the model needs one output for each: more outputs in "
            "its last layer. Labels that begin at 1: labels - 1. A label that does not count: "
            "CrossEntropyLoss(ignore_index=...)."
        )
    if isinstance(error, RuntimeError | ValueError) and _OTHER_DTYPE.search(text):
        dtype = next((dtype for dtype, _ in fields_of(data).values()), "")
        whole = _WHOLE if dtype.startswith(("int", "bool")) else ""
        if why := _FLOATS.get(dtype, whole):
            found.append(f"{next(iter(fields_of(data)))} is {dtype}: {why}")
        else:
            found.append("Hint: inputs need the dtype of the weights: .float() in the loss, or leave the cast out.")
    if isinstance(error, IndexError) and isinstance(data, tuple) and len(data) == 1 and text.startswith("tuple index"):
        found.append("Hint: a sample of this data set is one value; with targets: TensorDataset(inputs, targets).")
    if isinstance(error, AttributeError) and error.obj is data:
        fields = getattr(data, "_fields", ())
        found.append(
            f"Hint: the micro-batch has {' and '.join(f'.{field}' for field in fields)}."
            if fields
            else f"Hint: the micro-batch is a {type(data).__name__}, as the data set's samples are; "
            "those of pairs have .x and .y."
        )
    elif isinstance(error, AttributeError) and hasattr(error.obj, "dtype") and error.name in ("x", "y"):
        found.append(
            "Hint: that is a tensor. A Trainer calls loss(output, target); run.step() calls the loss with a "
            "micro-batch, which has .x and .y."
        )
    if type(error).__name__ == "FailOnRecompileLimitHit":
        found.append(
            "Hint: torch.compile makes code for each shape by itself, so that bits do not depend on which came first; "
            "there are too many. Write torch.compile(model, dynamic=True), one code for all sizes, or raise "
            "torch._dynamo.config.recompile_limit before run.prepare."
        )
    return found


def _classes_of(error: Exception) -> str:
    """Return which classes torch's loss was given, and for which it has outputs; empty where no frame tells."""
    trace, words = error.__traceback__, ""
    while trace is not None:
        given, name = trace.tb_frame.f_locals, trace.tb_frame.f_code.co_name
        outputs, target = given.get("input"), given.get("target")
        if name in _CLASS_LOSSES and isinstance(outputs, Tensor) and isinstance(target, Tensor) and outputs.ndim:
            number, low, high = outputs.shape[min(1, outputs.ndim - 1)], target.min().item(), target.max().item()
            words = (
                f"the targets are from {low} to {high}, and there are {number} outputs, for classes 0 to {number - 1}. "
            )
        trace = trace.tb_next
    return words
