"""Several hosts, one run: where their launchers meet, which ranks each has, who is lost, and what follows then.

The room above the launchers: those start and watch the workers of their own host, this one makes the hosts agree. The
rules are pure (`plan`, `network`, `roll`, `rounds`, `verdicts`); only `env_server`, its own process, imports torch.
"""
