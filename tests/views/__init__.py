"""Benches, cases and oracles of views: what tests of views, the soak and measurements share."""
