//! The succession of a charge after another process, or a balancer before this one: it finds the started
//! members again, and gives way to the next.

use std::sync::Arc;

use plimsoll_brain::scale::crew::{Hand, Order, Stage};
use plimsoll_brain::{EventKind, Time};
use plimsoll_cluster::scaler::Hands;
use tokio::time::Instant;

use super::Charge;
use crate::running::scaled::{Crewed, Manned};

impl Charge {
    /// Replies that no member is being started, if that is so and awaited.
    pub(super) fn say_if_settled(&mut self) {
        let starts = self.crew.asked() > 0 || self.count.busy;
        if !starts && let Some(reply) = self.settling.take() {
            // The receiver may not wait any more.
            let _ = reply.send(());
        }
    }

    /// Stops all work; returns the members. A member that is being stopped is stopped again by the next
    /// process.
    pub(super) async fn give_way(&mut self) -> Crewed {
        (self.halted, self.settling) = (true, None);
        self.tasks.abort_all();
        while let Some(done) = self.tasks.join_next().await {
            if let Ok(done) = done {
                self.done(done);
            }
        }
        let manned = |hand: &Hand| {
            Some(Manned { instance: self.instances.get(&hand.index)?.clone(), stage: hand.stage })
        };
        Crewed {
            group: self.scaling.group.to_string(),
            provider: self.scaling.kind.name().to_owned(),
            members: self.crew.hands().iter().filter_map(manned).collect(),
            identity: Some(self.running.scaled().identity()),
        }
    }

    /// Goes on, because no other process does: acts that were broken off begin again.
    pub(super) fn go_on(&mut self) {
        self.halted = false;
        self.office.go_on();
        self.due = Instant::now();
        self.present = (!matches!(self.hands, Hands::None)).then_some(self.due);
        self.count.busy = false;
        let stopping = self.crew.hands().iter().filter(|hand| hand.stage == Stage::Stopping);
        for index in stopping.map(|hand| hand.index).collect::<Vec<_>>() {
            self.order(Order::Stop { index });
        }
    }

    /// Releases the members: another process has all that were started.
    pub(super) fn let_go(&self) {
        if let Hands::Each(provider) = &self.hands {
            provider.let_go();
        }
    }

    /// Finds the members that a balancer before this one started.
    pub(super) async fn adopt(&mut self) {
        self.rule(self.scaling.clone());
        let inherited = self.running.scaled().inherited(&self.scaling.group);
        let Hands::Each(provider) = &self.hands else { return };
        for Manned { instance: one, stage } in inherited {
            let name: Arc<str> = one.address.to_string().into();
            provider.adopt(&one);
            let now = Time(1) + self.epoch.elapsed();
            self.crew.take_over(one.index, one.id.clone(), Some(name), stage, now);
            self.instances.insert(one.index, one);
        }
        match provider.present().await {
            Ok(present) => {
                for one in present.into_iter().flatten() {
                    let name: Arc<str> = one.address.to_string().into();
                    self.crew.adopt(one.index, one.id.clone(), Some(name), self.now());
                    self.instances.insert(one.index, one);
                }
                self.settle().await;
            }
            Err(why) => {
                let why = format!("{} cannot say who is there: {why}", self.scaling.kind.name());
                self.tell(EventKind::ScalerFailed, None, why, Vec::new());
            }
        }
    }
}
