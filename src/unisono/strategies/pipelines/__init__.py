"""Pipeline parallel training: schedules as moves, stages, what passes between them."""
