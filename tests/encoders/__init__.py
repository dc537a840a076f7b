"""The wire formats written the other way: oracles of the decoders, from the servers' documentation."""
