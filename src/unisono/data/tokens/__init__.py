"""Files of tokens: opened (`mapped`), named (`identity`), cut (`pieces`, `packing`), made samples (`samples`)."""
