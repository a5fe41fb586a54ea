"""What an evaluation says: its episodes as plain rows, the report over them, the comparison of two."""
