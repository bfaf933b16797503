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

use super::board::Board;
use super::keys::{Key, keys};
use super::look::{Eye, Look};
use super::picture::View;
use super::{Args, Exit, Failure, Globals};
use crate::control::Trouble;
use crate::screen::{CLEAR_BELOW, HIDE_CURSOR, Line, SHOW_CURSOR, restore_on_panic, size};

const OTHER_SCREEN: &str = "\x1b[?1049h";
const BACK: &str = "\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// The code that clears to the end of the line.
const CLEAR: &str = "\x1b[K";

/// The number of looks that may wait, and of key presses.
const LOOKS: usize = 1;
const PRESSES: usize = 16;

/// Watches until a key or a signal ends it.
pub(super) fn watch(args: &Args, eye: Eye, first: Look, globals: &Globals) -> Result<ExitCode, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let terminal = Terminal::take().map_err(Failure::failed)?;
    let mut view = View::new(&args.group, args.sort, args.interval);
    let ended = runtime.block_on(go_on(args, eye, first, &mut view, globals.color()));
    drop(terminal);
    ended.map_err(Failure::failed)
}

async fn go_on(args: &Args, eye: Eye, first: Look, view: &mut View, color: bool) -> io::Result<ExitCode> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut ends =
        [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?];
    let mut looks = looking(eye, args.interval);
    let mut presses = pressing();
    view.seen(Board::of(&first, None), &first.events);
    let mut before = first;
    // The last look that came while the picture is held.
    let mut held: Option<Look> = None;
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
                Some(Err(trouble)) => view.lost = Some(trouble.to_string()),
                None => return Ok(ExitCode::FAILURE),
            },
            pressed = presses.recv() => {
                for key in keys(&pressed.unwrap_or_default()) {
                    match key {
                        Key::Quit => return Ok(ExitCode::SUCCESS),
                        Key::Interrupt => return Ok(Exit::Interrupted.into()),
                        other => view.press(other),
                    }
                }
                if !view.paused && let Some(look) = held.take() {
                    before = show(view, &before, look);
                }
            },
            _ = resized.recv() => {}
            _ = terminate.recv() => return Ok(Exit::Interrupted.into()),
            _ = hang_up.recv() => return Ok(Exit::Interrupted.into()),
            _ = interrupt.recv() => return Ok(Exit::Interrupted.into()),
        }
    }
}

fn show(view: &mut View, before: &Look, look: Look) -> Look {
    view.seen(Board::of(&look, Some(before)), &look.events);
    look
}

/// Starts the thread that looks, again and again.
fn looking(mut eye: Eye, interval: Duration) -> mpsc::Receiver<Result<Look, Trouble>> {
    let (tell, looks) = mpsc::channel(LOOKS);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            if tell.blocking_send(eye.look()).is_err() {
                return;
            }
        }
    });
    looks
}

/// Starts the thread that reads key presses. It ends with the process.
fn pressing() -> mpsc::Receiver<Vec<u8>> {
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

fn draw(view: &mut View, color: bool) -> io::Result<()> {
    let (width, height) = size(io::stdout());
    let lines = view.lines(width, height);
    let painted: Vec<String> =
        lines.iter().map(|line: &Line| format!("{}{CLEAR}", line.paint(color))).collect();
    write(&format!("{HOME}{}{CLEAR_BELOW}", painted.join("\r\n")))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A terminal in use by the view: its other screen, no cursor, every key at once and none shown.
struct Terminal {
    before: Termios,
}

impl Terminal {
    fn take() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        let again = before.clone();
        restore_on_panic(move || restore(&again));
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(&format!("{OTHER_SCREEN}{HIDE_CURSOR}"))?;
        Ok(Self { before })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

fn restore(before: &Termios) {
    // A terminal that has gone cannot be restored.
    let _ = write(&format!("{SHOW_CURSOR}{BACK}"));
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}
