"""What bits depend on besides the program: random streams, switches of torch, and every change made to torch itself."""
