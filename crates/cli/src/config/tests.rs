//! Tests of the configuration as a whole.
