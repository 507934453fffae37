"""The site's search finds the page that a user means first, in Python as in the browser."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
NODE = shutil.which("node") or shutil.which("nodejs")

#: what a user types, and the page that is meant
MEANT = {
    "gradient accumulation": "common-tasks",
    "resume": "common-tasks",
    "hang": "debug",
    "deadlock": "debug",
    "deepspeed": "bigger-than-memory",
    "several machines": "several-machines",
    "multi node": "several-machines",
    "slurm": "slurm",
    "checkpoint": "checkpoints",
    "mixed precision": "common-tasks",
    "ledger": "observe",
    "replica": "concepts",
    "early stopping": "callbacks",
    "learning rate schedule": "callbacks",
    "token file": "data",
    "dataloader workers": "data",
    "streaming data": "large-data",
    "export ONNX": "inference",
    "tensorboard": "observe",
    "GAN": "several-models",
    "contrastive loss": "whole-batch",
    "kill": "recovery",
    "fsdp": "strategies",
    "verify": "commands/verify",
    "PeerLost": "reference/errors",
    "score mismatch": "determinism",
    "torch.compile": "determinism",
    "F1": "metrics",
    "lora": "examples",
    "k8s": "kubernetes",
    "install": "quickstart",
    "horovod": "migration/horovod",
    "cost": "costs",
    "debug": "debug",
    "OOM": "bigger-than-memory",
    "hugging face": "hugging-face",
    "load weights": "own-model",
    "save model": "own-model",
    "inference": "common-tasks",
    "best checkpoint": "own-model",
    "freeze layers": "examples",
    "transfer learning": "examples",
    "print only on rank 0": "callbacks",
    "clip gradients": "own-model",
    "why is it slow": "costs",
    "spot instances": "recovery",
    "validation loss": "metrics",
    "uninstall": "quickstart",
    "data parallel": "strategies",
    "CUDA": "gpu",
    "dropout": "determinism",
    "reproducibility": "determinism",
    "batch size": "concepts",
    "score": "concepts",
    "local_rank": "launching",
    "how many workers": "launching",
    "warmup": "callbacks",
    "ignore index": "losses",
    "gloo timeout": "troubleshooting",
    "S3": "can-it",
    "docker": "kubernetes",
    "windows": "quickstart",
    "license": "quickstart",
    "validation": "metrics",
    "multiple gpus": "common-tasks",
    "resume training": "common-tasks",
    "lr finder": "common-tasks",
    "overfit one batch": "common-tasks",
    "validate every n steps": "common-tasks",
    "log images": "common-tasks",
    "class weights": "common-tasks",
    "custom sampler": "common-tasks",
    "fast dev run": "common-tasks",
    "resume on other world size": "common-tasks",
    "lost host": "several-hosts-live",
    "change learning rate in the middle": "common-tasks",
    "evaluate only": "common-tasks",
    "collate_fn": "common-tasks",
    "seq2seq padding": "common-tasks",
    "how do I choose replicas": "concepts",
    "change batch size": "common-tasks",
    "different results on another machine": "determinism",
    "run without internet": "data",
    "distillation": "common-tasks",
    "stop when validation loss does not improve": "common-tasks",
    "jupyter": "notebook",
    "colab": "notebook",
    "all_gather": "common-tasks",
    "gather_for_metrics": "common-tasks",
    "no_sync": "common-tasks",
    "training hangs": "debug",
    "out of memory": "bigger-than-memory",
    "wandb": "observe",
    "tqdm": "observe",
    "watch": "observe",
    "world_size": "launching",
    "compare accelerate": "why",
    "gradient checkpointing": "bigger-than-memory",
    "upgrade": "quickstart",
    "python version": "quickstart",
    "mps": "quickstart",
    "optuna": "common-tasks",
    "hyperparameter search": "common-tasks",
    "tuner": "common-tasks",
    "loss spike": "replay",
    "rendezvous": "several-machines",
}


def load(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


search_index = load("search_index")


@pytest.fixture(scope="module")
def pages():
    return load("generated").texts()


@pytest.fixture(scope="module")
def index(pages):
    return search_index.make(pages)


def found(index, query):
    """Return the names of the pages that a query finds, in order."""
    return [index["sections"][number][0] for number in search_index.rank(index, query)]


def test_the_page_that_is_meant_comes_first(index):
    """For words that users type."""
    wrong = {query: found(index, query)[:3] for query, meant in MEANT.items() if found(index, query)[0] != meant}
    assert wrong == {}, "give the page a line `<!-- found by: words -->`, or weigh in docs/search_index.py"


def test_words_of_titles_weigh_more(pages):
    """Control: a page loses its place when its title and its line of words are gone."""
    text = pages["slurm"].replace("# Slurm", "# Clusters").replace("<!-- found by", "<!-- once by")
    assert found(search_index.make({**pages, "slurm": text.replace("lurm", "")}), "slurm")[0] != "slurm"


def test_design_notes_come_last(index):
    """Whatever is asked for: no page of the design stands before another one."""
    seen = 0
    for query in MEANT:
        rooms = [name.split("/")[0] in search_index.LAST for name in found(index, query)]
        assert rooms == sorted(rooms)
        seen += any(rooms)
    assert seen > 10


def test_words_in_their_forms():
    """One page for `resume` and `resuming`; names are found by their parts; what is unknown finds nothing."""
    assert len({search_index.stem(word) for word in ("resume", "resumes", "resumed", "resuming")}) == 1
    assert len({search_index.stem(word) for word in ("accumulate", "accumulation", "accumulating")}) == 1
    assert search_index.stem("loss") == search_index.stem("losses") != search_index.stem("lost")
    small = search_index.make({"a": "# A\n\ntext of EarlyStopping", "b": "# B\n\nother"})
    assert found(small, "early stopping") == found(small, "earlystopping") == found(small, "earl") == ["a"]
    assert found(small, "banana") == found(small, "") == []


def test_sections_have_their_anchors():
    """Headings inside of code are none; anchors are those that Sphinx makes."""
    page = "# Title\n\nfirst\n\n## `torch.compile` & [more](x.md)\n\n```text\n# no heading\n```\n"
    assert [(heading, "no heading" in text) for heading, text in search_index.sections(page)] == [
        ("Title", False),
        ("`torch.compile` & [more](x.md)", True),
    ]
    assert search_index.anchor("`torch.compile` & [more](x.md)") == "torch-compile-more"


@pytest.mark.skipif(NODE is None, reason="no node on PATH")
def test_the_browser_ranks_alike(index, tmp_path):
    """docs/_static/search.js gives the same sections in the same order as docs/search_index.py."""
    queries = [*MEANT, "", "banana", "earl", "live auto of workers", "résumé CHECKPOINTS"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    script = f"""
        const search = require({json.dumps(str(DOCS / "_static" / "search.js"))});
        const index = JSON.parse(require("fs").readFileSync({json.dumps(str(tmp_path / "index.json"))}));
        console.log(JSON.stringify({json.dumps(queries)}.map((query) => search.rank(index, query))));
    """
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, check=True, timeout=100)
    ranked = json.loads(done.stdout)
    assert ranked == [search_index.rank(index, query) for query in queries]
    assert sum(map(len, ranked)) > 500
