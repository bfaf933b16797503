//! Helpers that write parts of an answer.

/// Appends content, as a chunk or plainly. Empty content adds no chunk, which would end the body.
pub(super) fn write_chunk(output: &mut Vec<u8>, data: &[u8], is_chunked: bool) {
    if is_chunked && !data.is_empty() {
        output.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        output.extend_from_slice(data);
        output.extend_from_slice(b"\r\n");
    } else {
        output.extend_from_slice(data);
    }
}

/// Returns the reason phrase of a status.
pub(super) fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Failed",
    }
}
