"""The bus, the object store and the services as processes of one machine, under one supervisor."""
