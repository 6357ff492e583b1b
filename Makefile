# Two commands: `make demo` shows what Homing does, `make test` tests it. Underneath both are plain cargo.
.PHONY: demo test check tools help

demo: tools ## show both promises on three simulated pods
	cargo run --locked -- demo

test: tools ## run every test
	cargo test --locked

check: tools ## formatting, lints and documentation
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

tools: # what the build needs beside Rust and a C compiler
	@scripts/need cmake

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
