"""Pictures and summaries, made from plain values and files; nothing here starts, measures or trains."""
