//! Be judged.
