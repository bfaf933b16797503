//! The live view: looks, keys, sizes and signals come in, pictures go out.
//!
//! Looks run on a thread of their own, because a balancer that hangs must not block the keys; keys are read
//! on another. The terminal is restored when the view is dropped, and when it panics.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::input::{KeyPress, parse_keys};
use super::poll::{BalancerPoller, PollResult};
use super::render::TopView;
use super::snapshot::TopSnapshot;
use super::{Args, CliError, CliExitCode, GlobalArgs};
use crate::control::ControlError;
use crate::terminal::{CLEAR_BELOW, HIDE_CURSOR, SHOW_CURSOR, StyledLine, restore_on_panic, size};

const OTHER_SCREEN: &str = "\x1b[?1049h";
const BACK: &str = "\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// The code that clears to the end of the line.
const CLEAR: &str = "\x1b[K";

/// The number of looks that may wait, and of key presses.
const POLL_QUEUE: usize = 1;
const PRESSES: usize = 16;

/// Watches until a key or a signal ends it.
pub(super) fn run_view(
    args: &Args,
    eye: BalancerPoller,
    first: PollResult,
    globals: &GlobalArgs,
) -> Result<ExitCode, CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let terminal = RawTerminal::enter().map_err(CliError::failed)?;
    let mut view = TopView::new(&args.group, args.sort, args.interval);
    let ended = runtime.block_on(run_loop(args, eye, first, &mut view, globals.stdout_has_color()));
    drop(terminal);
    ended.map_err(CliError::failed)
}

async fn run_loop(
    args: &Args,
    eye: BalancerPoller,
    first: PollResult,
    view: &mut TopView,
    color: bool,
) -> io::Result<ExitCode> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut ends =
        [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?];
    let mut looks = spawn_poller(eye, args.interval);
    let mut presses = spawn_key_reader();
    view.update(TopSnapshot::from_polls(&first, None), &first.events);
    let mut before = first;
    // The last look that came while the picture is held.
    let mut held: Option<PollResult> = None;
    loop {
        draw(view, color)?;
        let [terminate, hang_up, interrupt] = &mut ends;
        tokio::select! {
            look = looks.recv() => match look {
                Some(Ok(mut look)) if view.paused => {
                    if let Some(earlier) = held.take() {
                        look.events.splice(..0, earlier.events);
                    }
                    held = Some(look);
                }
                Some(Ok(look)) => before = show(view, &before, look),
                Some(Err(trouble)) => view.poll_error = Some(trouble.to_string()),
                None => return Ok(ExitCode::FAILURE),
            },
            pressed = presses.recv() => {
                for key in parse_keys(&pressed.unwrap_or_default()) {
                    match key {
                        KeyPress::Quit => return Ok(ExitCode::SUCCESS),
                        KeyPress::Interrupt => return Ok(CliExitCode::Interrupted.into()),
                        other => view.handle_key(other),
                    }
                }
                if !view.paused && let Some(look) = held.take() {
                    before = show(view, &before, look);
                }
            },
            _ = resized.recv() => {}
            _ = terminate.recv() => return Ok(CliExitCode::Interrupted.into()),
            _ = hang_up.recv() => return Ok(CliExitCode::Interrupted.into()),
            _ = interrupt.recv() => return Ok(CliExitCode::Interrupted.into()),
        }
    }
}

fn show(view: &mut TopView, before: &PollResult, look: PollResult) -> PollResult {
    view.update(TopSnapshot::from_polls(&look, Some(before)), &look.events);
    look
}

/// Starts the thread that looks, again and again.
fn spawn_poller(
    mut eye: BalancerPoller,
    interval: Duration,
) -> mpsc::Receiver<Result<PollResult, ControlError>> {
    let (tell, looks) = mpsc::channel(POLL_QUEUE);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            if tell.blocking_send(eye.poll()).is_err() {
                return;
            }
        }
    });
    looks
}

/// Starts the thread that reads key presses. It ends with the process.
fn spawn_key_reader() -> mpsc::Receiver<Vec<u8>> {
    let (tell, presses) = mpsc::channel(PRESSES);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        loop {
            match io::stdin().read(&mut bytes) {
                Ok(count @ 1..) if tell.blocking_send(bytes[..count].to_vec()).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    // The terminal has gone: that counts as q.
                    let _ = tell.blocking_send(b"q".to_vec());
                    return;
                }
            }
        }
    });
    presses
}

fn draw(view: &mut TopView, color: bool) -> io::Result<()> {
    let (width, height) = size(io::stdout());
    let lines = view.lines(width, height);
    let painted: Vec<String> =
        lines.iter().map(|line: &StyledLine| format!("{}{CLEAR}", line.paint(color))).collect();
    write(&format!("{HOME}{}{CLEAR_BELOW}", painted.join("\r\n")))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A terminal in use by the view: its other screen, no cursor, every key at once and none shown.
struct RawTerminal {
    original: Termios,
}

impl RawTerminal {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        let again = before.clone();
        restore_on_panic(move || restore(&again));
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(&format!("{OTHER_SCREEN}{HIDE_CURSOR}"))?;
        Ok(Self { original: before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore(&self.original);
    }
}

fn restore(before: &Termios) {
    // A terminal that has gone cannot be restored.
    let _ = write(&format!("{SHOW_CURSOR}{BACK}"));
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}
