"""What `options` draws from: texts that are no number, what somebody could mean, run files."""

import sys

NO_NUMBER = (
    "", " ", "nan", "-nan", "inf", "-inf", "Infinity", "x", "1x", "1_000", "٣", "½", "0x10", "1e", "--1", "1 2", "1,2",
    "None", "true", "\0", "1\0", "\x1b[31m1", "1\n2", "9" * 45, "-" + "9" * 45, "1e400", "-1e400", "9" * 5000,
    "x" * 100_000, "\udcff", "🎻", "[1]", "$(id)", "1;2", "../1", "+-3",
)  # fmt: skip
"""Texts that no number of this product is."""
NOT_WHOLE = (*NO_NUMBER, "1.5", "1e3", "2.0", "1e-3", ".5")
NUMBERS = ("0", "1", "2", "3", "64", "1000", "1000000000")
TEXTS = (
    *NO_NUMBER, "0", "-1", "1", "2", "4096", "100000", "digits", "exact", "ddp", "none", "auto", "cpu", "0,1", "1,1",
    "1,2,4", "1..8", "8..1", "1:4", "4:1", "12ms", "1e300s", "0s", "1e-300s", "400Gb/s", "1e-300Gb/s", "1e300GB/s",
    "A=B", "=", "A=", "CLAIM=/x", "node1:29400", "node1:99999999", "[::1]:1", "localhost", "utf-8", "rot13", "hex",
    "flip,shift=2", "shift=nan", "crop=1e999", "28x28", "0x0", "9" * 30 + "x1", "nan,nan", "inf,1", "1,nan", "ring",
    "all_reduce", "4KB", "999999999GB", "%s", "{}", "{task}", "~", "*", "-", "a" * 300, "/" * 5000, "é", "script.py",
    "data.csv", "job.toml", "damaged.json", "deep.json", "empty", "folder", "/dev/null", "/proc/self/mem",
    "/proc/none/x", "missing/x.svg", "x.svg", "x.safetensors",
)  # fmt: skip
MEANT = {
    "add_rate": ("1000GB/s",), "args": ("a",), "array": ("0-3%2",), "augment": ("flip,shift=2",), "between": ("1b/s",),
    "checkpoint_time": ("10s", "1ns"), "config": ("job.toml",), "cpu": ("500m",), "data": ("data.csv", "folder"),
    "directory": ("empty", "folder"), "encoding": ("utf-8", "rot13"), "explain": ("ring", "tree"),
    "hosts": ("a:1,b:1",), "image": ("image:1",), "image_size": ("28x28",), "inside": ("450GB/s", "1e-9b/s"),
    "loaders": ("0,1",), "map": ("0,1",), "mem": ("64G",), "memory": ("8Gi",), "model": ("cnn", "gcnn"),
    "mtbf": ("50000h", "1ns"), "nnodes": ("1", "2", "1:2"), "only": ("all_reduce,barrier",), "out": ("out", "x.html"),
    "picture": ("x.svg",), "preset": ("default", "best"), "python": (sys.executable,), "ranks": ("1,2", "1..8", "2"),
    "rdzv_endpoint": ("localhost:1", "node1"), "recipe": ("digits", "digits", "text", "images"),
    "restart_time": ("60s", "1000d"), "sample_time": ("12ms", "1000d"), "script": ("script.py",),
    "shares": ("1,2", "1"), "shell": ("bash",), "sizes": ("4KB,1MB", "1"), "sources": ("empty", "damaged.json"),
    "strategies": ("exact,ddp",), "strategy": ("exact", "ddp", "ps", "pipeline", "fsdp", "dp"),
    "target": ("digits", "script.py"), "time": ("1-00:00:00",), "timeline": ("x.json",), "variables": ("A=B",),
    "ways": ("exact,ddp",), "workers": ("1", "2", "auto", "1,2"),
}  # fmt: skip
"""Values that somebody could mean, by the name of an option or argument."""
DEEPER = {
    ("forecast",): ("--parameters", "1e6", "--sample-time", "1ms", "--batch-size", "64"),
    ("launch", "slurm"): ("--dry-run",),
    ("launch", "mpi"): ("--dry-run", "-n", "2"),
    ("launch", "ray"): ("--dry-run", "-n", "2"),
    ("launch", "kubernetes"): ("--dry-run", "--image", "x"),
    ("bench", "collectives"): ("--explain", "ring"),
}
"""What makes a verb do something without starting a process."""
CONFIGS = (
    "epochs = nan", "epochs = inf", "epochs = 1e3", "epochs = 10000000000000000000000000", "epochs = true", "lr = nan",
    "lr = -inf", "batch-size = 4\nbatch_size = 8", "workers = nan", "workers = -1", "num-workers = 9999999999999999999",
    "seed = 1.0", "epochs = []", "epochs = {}", "model = [[1]]", "out = '\\u0000'", "data = \"\\u0000x\"",
    "strategy = ''", "nothing = 1", "threads = '4'", "json = true", "config = 'job.toml'", "\ufeffepochs = 1",
    "epochs = 1\nepochs = 2", "epochs", "\0", "a" + ".a" * 3000 + " = 1", "epochs = " + "[" * 3000, "heartbeat = nan",
    "max-restarts = -1", "image-size = 1979-05-27", "limit = 0", "shares = [nan, 1]", "accumulate = 0",
    "bucket-mb = inf", "rdzv-timeout = nan", "epochs = " + "9" * 5000, "x = '" + "x" * 200_000 + "'",
)  # fmt: skip
