"""Reading what a table held before its log began."""
