"""Programs that draw hostile cases by seed and play them against the product; what they draw is theirs alone."""
