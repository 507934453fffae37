"""``python -m unisono`` is ``unisono``."""

from unisono.cli.main import main

main()
