"""What bits depend on besides the program: random streams, switches of torch, what is changed behind its back."""
