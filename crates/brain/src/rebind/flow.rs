//! What was carried out of the decisions about a member, by all of this process who hold its sessions.
//!
//! A part of the sessions is to go, and each is asked by itself. Drawn for each, what goes scatters around that part: of two sessions, of
//! which one is to go, both go in one case of four, and none in another. So it is counted.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::Shed;

/// Beside each member.
#[derive(Debug, Default)]
pub struct Flow {
    /// The decision, above, and which part of the holders' sessions it has asked to go so far, f32 bits.
    gone: AtomicU64,
    /// Load that came with sessions since the member's last report, f32 bits.
    came: AtomicU32,
}

impl Flow {
    /// Takes what is still to go, up to the `part` that a session is. The session is to go as likely as it is all of that.
    pub(super) fn take(&self, shed: Shed, part: f32) -> f32 {
        let mut taken = 0.0;
        let take = |gone| {
            let before = part_of(gone, shed.epoch);
            taken = (shed.share - before).clamp(0.0, part.max(0.0));
            Some(u64::from(shed.epoch) << 32 | u64::from((before + taken).to_bits()))
        };
        // It always gives a value.
        let _ = self.gone.fetch_update(Relaxed, Relaxed, take);
        taken
    }

    /// A session came that is so much load, in any unit that is the same for all members.
    pub fn comes(&self, load: f32) {
        let add = |came| Some((f32::from_bits(came) + load).to_bits());
        let _ = self.came.fetch_update(Relaxed, Relaxed, add);
    }

    /// How much that is of all.
    pub(crate) fn came(&self) -> f64 {
        f64::from(f32::from_bits(self.came.load(Relaxed)))
    }

    /// The member reported: what came is in its load.
    pub(crate) fn reported(&self) {
        self.came.store(0, Relaxed);
    }
}

/// What has gone by a decision; nothing has by one that is new.
fn part_of(gone: u64, epoch: u32) -> f32 {
    if (gone >> 32) as u32 == epoch { f32::from_bits(gone as u32) } else { 0.0 }
}
