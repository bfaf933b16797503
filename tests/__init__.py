"""Tests. The Rust ones are run by cargo; `tests.worlds` is run as a module."""
