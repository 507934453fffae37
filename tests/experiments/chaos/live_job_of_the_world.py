"""What must not be done: a loss that depends on how many ranks there are."""

from live_job import train

if __name__ == "__main__":
    train(lambda run: 1.0 / run.world.world_size)
