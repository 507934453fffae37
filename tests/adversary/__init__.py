"""What somebody who means no good would try: cases drawn by a seed, judged from outside by public names and files.

``python -m adversary --cases 10000`` (in `tests`) tries many, and `make adversary` does so. It shares no code with
`unisono chaos`.
"""
