//! Be seen and be told.
