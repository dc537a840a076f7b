"""PostgreSQL's logical WAL."""
