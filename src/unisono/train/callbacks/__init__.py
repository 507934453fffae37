"""What a trainer does beside training: stop, average, watch, log. Each callback is a plain object with hooks."""
