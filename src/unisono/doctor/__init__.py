"""Look before the start: what of this machine, and which known mistakes of a script, would spoil a distributed run."""
