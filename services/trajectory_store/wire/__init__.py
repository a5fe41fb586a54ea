"""protobuf <-> domain, nothing else: facts in, views and lines of JSON out."""
