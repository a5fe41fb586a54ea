"""A stopped platform as one folder of files, and the platform again from them."""
