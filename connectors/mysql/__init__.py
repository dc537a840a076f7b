"""MySQL and MariaDB: the binlog."""
