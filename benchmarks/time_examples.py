"""How long the examples take: each as a program of its own, one after the other, in an empty directory.

    python benchmarks/time_examples.py [NAME ...] [--quick] [--out DIR]

Seconds by the wall and CPU seconds of all processes (user and system). On a busy machine only the CPU seconds say
something, and they too are some tenths too high.
"""

import sys
import tempfile

from harness import parser_of, run, save
from results import ROOT, Result

EXAMPLES = ROOT / "examples"


def main() -> None:
    """Run and time the examples."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="files of examples/ without .py (all)")
    given = parser.parse_args()
    found = []
    for name in given.names or (["own_loop"] if given.quick else sorted(path.stem for path in EXAMPLES.glob("*.py"))):
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu, _ = run([sys.executable, EXAMPLES / f"{name}.py"], cwd=folder)
        found.append(Result.of(name, [cpu], what=f"examples/{name}.py, CPU time", unit="s", topic="Start and data",
                               settings={"wall, s": round(wall, 1)}))  # fmt: skip
        print(f"{name}: {wall:.1f} s, {cpu:.1f} s of CPU", file=sys.stderr, flush=True)
    save(given, found)


if __name__ == "__main__":
    main()
