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

const ENTER_ALTERNATE_SCREEN: &str = "\x1b[?1049h";
const LEAVE_ALTERNATE_SCREEN: &str = "\x1b[?1049l";
const CURSOR_HOME: &str = "\x1b[H";
/// The code that clears to the end of the line.
const CLEAR_LINE_END: &str = "\x1b[K";

/// The number of looks that may wait, and of key presses.
const POLL_QUEUE: usize = 1;
const KEY_QUEUE: usize = 16;

/// Watches until a key or a signal ends it.
pub(super) fn run_view(
    args: &Args,
    poller: BalancerPoller,
    first_poll: PollResult,
    globals: &GlobalArgs,
) -> Result<ExitCode, CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let terminal = RawTerminal::enter().map_err(CliError::failed)?;
    let mut view = TopView::new(&args.group, args.sort, args.interval);
    let result = runtime.block_on(run_loop(args, poller, first_poll, &mut view, globals.stdout_has_color()));
    drop(terminal);
    result.map_err(CliError::failed)
}

async fn run_loop(
    args: &Args,
    poller: BalancerPoller,
    first_poll: PollResult,
    view: &mut TopView,
    color: bool,
) -> io::Result<ExitCode> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut stop_signals =
        [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?];
    let mut polls = spawn_poller(poller, args.interval);
    let mut key_presses = spawn_key_reader();
    view.update(TopSnapshot::from_polls(&first_poll, None), &first_poll.events);
    let mut previous = first_poll;
    // The last look that came while the picture is held.
    let mut held_poll: Option<PollResult> = None;
    loop {
        draw(view, color)?;
        let [terminate, hang_up, interrupt] = &mut stop_signals;
        tokio::select! {
            polled = polls.recv() => match polled {
                Some(Ok(mut poll)) if view.paused => {
                    if let Some(earlier) = held_poll.take() {
                        poll.events.splice(..0, earlier.events);
                    }
                    held_poll = Some(poll);
                }
                Some(Ok(poll)) => previous = update_view(view, &previous, poll),
                Some(Err(error)) => view.poll_error = Some(error.to_string()),
                None => return Ok(ExitCode::FAILURE),
            },
            bytes = key_presses.recv() => {
                for key in parse_keys(&bytes.unwrap_or_default()) {
                    match key {
                        KeyPress::Quit => return Ok(ExitCode::SUCCESS),
                        KeyPress::Interrupt => return Ok(CliExitCode::Interrupted.into()),
                        key_press => view.handle_key(key_press),
                    }
                }
                if !view.paused && let Some(poll) = held_poll.take() {
                    previous = update_view(view, &previous, poll);
                }
            },
            _ = resized.recv() => {}
            _ = terminate.recv() => return Ok(CliExitCode::Interrupted.into()),
            _ = hang_up.recv() => return Ok(CliExitCode::Interrupted.into()),
            _ = interrupt.recv() => return Ok(CliExitCode::Interrupted.into()),
        }
    }
}

fn update_view(view: &mut TopView, previous: &PollResult, poll: PollResult) -> PollResult {
    view.update(TopSnapshot::from_polls(&poll, Some(previous)), &poll.events);
    poll
}

/// Starts the thread that looks, again and again.
fn spawn_poller(
    mut poller: BalancerPoller,
    interval: Duration,
) -> mpsc::Receiver<Result<PollResult, ControlError>> {
    let (sender, polls) = mpsc::channel(POLL_QUEUE);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            if sender.blocking_send(poller.poll()).is_err() {
                return;
            }
        }
    });
    polls
}

/// Starts the thread that reads key presses. It ends with the process.
fn spawn_key_reader() -> mpsc::Receiver<Vec<u8>> {
    let (sender, key_presses) = mpsc::channel(KEY_QUEUE);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        loop {
            match io::stdin().read(&mut bytes) {
                Ok(count @ 1..) if sender.blocking_send(bytes[..count].to_vec()).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    // The terminal has gone: that counts as q.
                    let _ = sender.blocking_send(b"q".to_vec());
                    return;
                }
            }
        }
    });
    key_presses
}

fn draw(view: &mut TopView, color: bool) -> io::Result<()> {
    let (width, height) = size(io::stdout());
    let lines = view.lines(width, height);
    let painted: Vec<String> =
        lines.iter().map(|line: &StyledLine| format!("{}{CLEAR_LINE_END}", line.paint(color))).collect();
    write_flushed(&format!("{CURSOR_HOME}{}{CLEAR_BELOW}", painted.join("\r\n")))
}

fn write_flushed(text: &str) -> io::Result<()> {
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
        let original = tcgetattr(io::stdin())?;
        let mut raw = original.clone();
        raw.make_raw();
        let saved = original.clone();
        restore_on_panic(move || restore_terminal(&saved));
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write_flushed(&format!("{ENTER_ALTERNATE_SCREEN}{HIDE_CURSOR}"))?;
        Ok(Self { original })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore_terminal(&self.original);
    }
}

fn restore_terminal(original: &Termios) {
    // A terminal that has gone cannot be restored.
    let _ = write_flushed(&format!("{SHOW_CURSOR}{LEAVE_ALTERNATE_SCREEN}"));
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, original);
}
