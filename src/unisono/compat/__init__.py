"""Other libraries' interfaces over a `Run`: scripts that keep their loop and change an import line."""
