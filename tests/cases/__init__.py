"""Cases as data: what is done to a source, in SQL, and what a reader of the topics then holds."""
