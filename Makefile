# SubjectBroker. The targets a person needs first are `make demo` and `make test`.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

PREFIX   ?= /usr/local
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 20s
SOAK     ?= 30m
BENCH    ?=

PROGRAMS := sbd sb-mcp sbctl
STATIC   := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

# Build tools have modules of their own, so that nothing of theirs enters ours.
# The first use compiles them: buf and golangci-lint take minutes, once.
BUF         := go tool -modfile=tools/go.mod buf
GOLANGCI    := go tool -modfile=tools/lint/go.mod golangci-lint
GOVULNCHECK := go tool -modfile=tools/lint/go.mod govulncheck

# The race detector needs a C compiler.
RACE = $(shell command -v $$(go env CC) >/dev/null && echo -race)

.PHONY: help build demo test faults soak bench fuzz generate install clean
help:
	@echo 'make build     the three programs, static, in bin/'
	@echo 'make demo      the main job with real processes in a temporary home'
	@echo 'make test      every test that Go alone allows; names the suites left out (TEST_ALL=1: none may be)'
	@echo 'make faults    what breaks under it: kills, power cuts, failing disks (docs/faults.md); needs root'
	@echo 'make soak      the parts of it that draw their moments, for SOAK=$(SOAK)'
	@echo 'make check     formatting, linters, generated code, contract, vulnerabilities, import rules, cross-builds'
	@echo 'make bench     figures, each beside its limit in the same run (BENCH=-quick: a few seconds)'
	@echo 'make fuzz      every fuzz target for FUZZTIME=$(FUZZTIME)'
	@echo 'make generate  Go code from proto/'
	@echo 'make install   into PREFIX=$(PREFIX)'

build:
	@mkdir -p bin
	$(STATIC) -o bin/ $(PROGRAMS:%=./cmd/%)

demo: build
	@bin/sbctl demo

test:
	@$(if $(RACE),,echo 'no C compiler: the race detector is off'; [ "$${TEST_ALL:-}" != 1 ];) \
	go test -json -timeout 20m -shuffle=on $(RACE) $$(go list ./... | grep -v /daemon/faults) | go run -C tools ./testreport

# Of a package of its own, because its processes, disks and kills need the
# machine to themselves. Nothing here runs in the tests' own process that the
# race detector could look at.
faults:
	@go test -json -count=1 -parallel 2 -timeout 20m ./daemon/faults | go run -C tools ./testreport

soak:
	@SOAK=$(SOAK) go test -json -count=1 -parallel 2 -timeout 0 -run 'Load|Shim|Short|Frozen|Twenty|Pages' ./daemon/faults | go run -C tools ./testreport

bench: build
	@go run ./cmd/internal/bench $(BENCH)

fuzz:
	@.ci/fuzz $(FUZZTIME)

generate:
	$(BUF) generate --template tools/buf.gen.yaml

install: build
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 0755 $(PROGRAMS:%=bin/%) '$(DESTDIR)$(PREFIX)/bin'
	@share='$(DESTDIR)$(PREFIX)/share'; \
	install -d "$$share"/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}; \
	bin/sbctl completion bash >"$$share/bash-completion/completions/sbctl"; \
	bin/sbctl completion zsh >"$$share/zsh/site-functions/_sbctl"; \
	bin/sbctl completion fish >"$$share/fish/vendor_completions.d/sbctl.fish"; \
	bin/sbctl man "$$share/man/man1" >/dev/null

clean:
	rm -rf bin dist

# check runs what looks at the code without running the product.
CHECKS := format tidy vet rules scripts generated contract cross vulnerabilities lint
.PHONY: check $(CHECKS:%=check-%)
check: $(CHECKS:%=check-%)

check-format:
	@files=$$(gofmt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); \
	[ -z "$$files" ] || { echo "not gofmt-ed:"; echo "$$files"; exit 1; }

check-tidy:
	go mod tidy -diff

check-vet:
	go vet ./...
	go -C tools vet ./testreport
	go -C tools test ./testreport

# Who may import whom, and how many modules each program links.
check-rules:
	go test -count=1 ./cmd

check-scripts:
	@if command -v shellcheck >/dev/null; then \
		git ls-files -z -- ':!*.txtar' | xargs -0 grep -lE '^#!.*\b(ba)?sh$$' | xargs -r shellcheck; \
	else echo 'shellcheck is not installed: shell scripts were not checked'; [ "$${TEST_ALL:-}" != 1 ]; fi

check-generated:
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(BUF) generate --template tools/buf.gen.yaml --output "$$fresh" && \
	for file in $$(git ls-files 'proto/*.pb.go') $$(cd "$$fresh" && find proto -name '*.pb.go'); do \
		cmp "$$file" "$$fresh/$$file" || { echo 'generated code is not up to date: make generate'; exit 1; }; \
	done

# The contract on the sockets may only grow: compared with the newest tag, or,
# before there is one, with what is committed.
check-contract:
	$(BUF) lint
	@base=$$(git describe --tags --abbrev=0 2>/dev/null) && against="tag=$$base" || against='ref=HEAD'; \
	echo "buf breaking --against .git#$$against"; \
	$(BUF) breaking --against ".git#$$against"

check-cross:
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go vet ./...
	GOOS=darwin GOARCH=amd64 CGO_ENABLED=0 go build -o /dev/null $(PROGRAMS:%=./cmd/%)

# govulncheck needs its database. Where that cannot be reached, this says so and
# does not fail: the answer is unknown, not good.
check-vulnerabilities:
	@out=$$($(GOVULNCHECK) ./... 2>&1) && code=0 || code=$$?; \
	if grep -q 'fetching vulnerabilities' <<<"$$out"; then \
		echo 'govulncheck was NOT run: its database could not be reached'; \
	else echo "$$out"; exit $$code; fi

check-lint:
	$(GOLANGCI) run
