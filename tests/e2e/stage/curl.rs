//! curl, the common client.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

/// The result of curl.
pub(crate) struct Curled {
    pub(crate) code: Option<i32>,
    pub(crate) body: Vec<u8>,
    /// The output of `-v`, and errors.
    pub(crate) talk: String,
}

/// Runs curl with this standard input.
#[track_caller]
pub(crate) fn curl(args: &[&str], input: &[u8]) -> Curled {
    let mut command = Command::new(super::part("curl"));
    // -q: curl must not read the user's own file.
    command.args(["-q", "-sS", "--noproxy", "*", "--max-time", "60"]).args(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = thread::scope(|scope| {
        // curl may not read all of it.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    Curled {
        code: output.status.code(),
        body: output.stdout,
        talk: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Returns the status that curl gets; it must get one.
#[track_caller]
pub(crate) fn curl_status(args: &[&str], input: &[u8]) -> u16 {
    let all = [&["-o", "/dev/null", "-w", "%{http_code}"], args].concat();
    let curled = curl(&all, input);
    assert_eq!(curled.code, Some(0), "{}", curled.talk);
    String::from_utf8(curled.body).unwrap().parse().unwrap()
}
