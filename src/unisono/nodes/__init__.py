"""Several hosts, one run: where their launchers meet, who sits where, who is lost, and what follows then.

The room above the launchers: these start and watch the workers of their own host, this one makes the hosts agree. It
imports torch only for its stores and its elastic rendezvous (`rendezvous`); the rules are pure (`plan`, `network`,
`roll`, `verdicts`).
"""
