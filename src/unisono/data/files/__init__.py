"""Files as untrusted input: fetched, cached, and read strictly, format by format."""
