# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PY := .venv/bin/python
PROTOS := $(shell find proto -name '*.proto' | sort)

.PHONY: proto
proto: ## regenerate libs/upcycle/api from proto/
	rm -rf libs/upcycle/api
	$(PY) -m grpc_tools.protoc -I proto --python_out=libs --grpc_python_out=libs --mypy_out=libs --mypy_grpc_out=libs $(PROTOS)
	find libs/upcycle/api -type d -exec touch {}/__init__.py \;
