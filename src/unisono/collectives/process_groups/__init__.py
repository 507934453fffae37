"""Process groups of torch.distributed: the store where ranks meet, the transport over gloo and nccl, several hosts."""
