//! PEM (RFC 7468), and files that appear whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Returns bytes between the lines of a label.
pub(super) fn encode_pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, remaining) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = remaining;
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// Writes a file that anyone may read.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    replace(path, text, 0o644)
}

/// Writes a file that only its owner may read, from its first moment.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    replace(path, text, 0o600)
}

/// Replaces a file atomically: concurrent readers see the old one.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let temporary_path = path.with_added_extension("new");
    match std::fs::remove_file(&temporary_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary_path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary_path, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_long_as_they_should_be() {
        assert_eq!(encode_pem("X", b""), "-----BEGIN X-----\n-----END X-----\n");
        let text = encode_pem("X", &[0; 49]);
        let lines: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lines, [17, 64, 4, 15]);
    }
}
