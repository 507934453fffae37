"""What several strategies are made of: flat buffers, one pass over a micro-batch, clipping, the report of a step."""
