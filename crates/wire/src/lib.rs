//! What the bytes mean.
