# qengine: `make run` sets everything up and streams an answer; `make test` sets everything up and tests.
#
#   make build      build/bin/qengine with its plugins beside it
#   make run        build, fetch a small model once, answer PROMPT
#   make test       build and run every test that this machine can run
#   make install    to PREFIX (default /usr/local); the result may be moved as a whole
#   make clean      remove the build folder (the model in .cache stays)
#
# JOBS=n limits parallel compilation.

SHELL  := /bin/bash
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
PROMPT ?= Why is the sky blue? Answer in two sentences.
MODEL  := .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: build run test install clean setup model

build: setup
	@cmake --preset dev $(CMAKE_ARGS) >build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }; rm -f build.log
	@cmake --build build -j $(JOBS) --target all

setup:
	@bash cmake/setup.sh

$(MODEL):
	@bash cmake/fetch_model.sh $(MODEL)

model: $(MODEL)

run: build $(MODEL)
	build/bin/qengine run --model $(MODEL) --chat --prompt "$(PROMPT)" --max-tokens 128

test: build
	ctest --test-dir build --output-on-failure -j $(JOBS) --no-tests=error

install: build
	cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build
