"""What ``--help`` shows of each verb: commands to copy."""

EXAMPLES = {
    "run": ("unisono run -n 2 train.py", "unisono run -n auto --max-restarts 3 train.py --epochs 5"),
    "launch slurm": ("unisono launch slurm --nodes 2 -n 8 train.py",),
    "launch mpi": ("unisono launch mpi -n 4 train.py", "unisono launch mpi --dry-run -n 4 train.py"),
    "launch ray": ("unisono launch ray -n 4 train.py",),
    "launch kubernetes": ("unisono launch kubernetes --image IMAGE --nodes 2 --dry-run /app/train.py",),
    "join": ("mpirun -n 4 unisono join train.py",),
    "train": ("unisono train digits --out runs/digits", "unisono train mnist -n 4 --epochs 2 --strategy fsdp"),
    "scale": ("unisono scale runs/digits 4",),
    "watch": ("unisono watch runs/digits", "unisono watch runs/digits --web"),
    "verify": (
        "unisono verify digits --workers 1,2,4", "unisono verify --config runs/digits",
        "unisono verify train.py -n 1,2 -- --lr 0.1",
    ),
    "diff": ("unisono diff runs/a runs/b",),
    "chaos": ("unisono chaos digits --kills 5", "unisono chaos digits --live -n 4 --kills 12 --fault-seed 1"),
    "replay": ("unisono replay runs/digits --step 40", "unisono replay runs/digits --step 40 --detail"),
    "blame": ("unisono blame runs/digits --step 40", "unisono blame runs/digits --epoch 1 --top 20"),
    "fork": ("unisono fork runs/digits --step 40 --out runs/other --set batch_size=32",),
    "audit": ("unisono audit runs/digits --segments 3 --seed 7",),
    "predict": ("unisono predict runs/digits image.png", "unisono predict runs/imdb - < reviews.txt"),
    "checkpoint list": ("unisono checkpoint list runs/digits",),
    "checkpoint verify": ("unisono checkpoint verify runs/digits",),
    "checkpoint rehearse": ("unisono checkpoint rehearse runs/digits",),
    "checkpoint export": (
        "unisono checkpoint export runs/digits model.safetensors", "unisono checkpoint export runs/digits model.onnx",
    ),
    "checkpoint prune": ("unisono checkpoint prune runs/digits --keep 1 --dry-run",),
    "bench collectives": ("unisono bench collectives -n 2 --sizes 4KB,1MB", "unisono bench collectives --explain ring"),
    "bench links": ("unisono bench links digits -n 2",),
    "bench scaling": ("unisono bench scaling digits -n 1,2,4",),
    "bench strategies": ("unisono bench strategies digits --strategies exact,ddp",),
    "bench tune": ("unisono bench tune digits",),
    "forecast": ("unisono forecast digits", "unisono forecast --parameters 7e9 --sample-time 0.9s --batch-size 1024"),
    "certify": ("unisono certify --out certificate", "unisono certify --check certificate/certificate.json"),
    "doctor": ("unisono doctor", "unisono doctor train.py"),
    "report": ("unisono report runs/a runs/b --out report.html",),
}  # fmt: skip


def shown(verb: str) -> str:
    """Return the end of a verb's help page; nothing where there are no examples."""
    lines = EXAMPLES.get(verb, ())
    return "".join(["\n\n\b\nExamples:", *(f"\n  {line}" for line in lines)]) if lines else ""
