//! A balancer in front of a group of CORBA servers.

use std::net::SocketAddr;
use std::ops::Deref;

use super::{Balancer, Folder, Orb, OrbMember, free_port, until};

/// A balancer with one iiop listener on the group `web`.
pub(crate) struct OrbGroup {
    balancer: Balancer,
    text: String,
    /// The group's reference, `IOR:...`.
    pub(crate) ior: String,
    /// The address of the listener, which a restart does not change.
    pub(crate) address: SocketAddr,
}

impl OrbGroup {
    /// Starts a group for these members, taking turns. `rest` goes into the group's table.
    #[track_caller]
    pub(crate) fn start(binding: &str, members: &[OrbMember], rest: &str) -> Self {
        Self::in_folder(Folder::new(), binding, &members.iter().map(entry).collect::<Vec<_>>(), rest)
    }

    /// Starts a group with an object key of its own.
    #[track_caller]
    pub(crate) fn keyed(binding: &str, members: &[OrbMember], key: &str) -> Self {
        Self::start(binding, members, &format!("iiop.key = \"{key}\""))
    }

    /// Starts a group in an existing folder, for members as the file lists them; the group's reference is in
    /// the folder's file `group.ior`.
    #[track_caller]
    pub(crate) fn in_folder(folder: Folder, binding: &str, members: &[String], rest: &str) -> Self {
        // The references name the port, so that it has to be the same after a restart.
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let text = format!(
            "[[listener]]\naddress = \"{address}\"\nprotocol = \"iiop\"\nbinding = \"{binding}\"\n\
             group = \"web\"\n[[group]]\nname = \"web\"\nstrategy = \"round_robin\"\nslow_start = \"0s\"\n\
             members = [{}]\niiop.ior_file = \"{}\"\niiop.max_message = 16777216\n{rest}\n",
            members.join(", "),
            folder.join("group.ior").display(),
        );
        let balancer = Balancer::start_in(folder, &text);
        let ior = shown(&balancer, "ior");
        Self { balancer, text, ior, address }
    }

    /// Returns a corbaloc of the group without a version, which means 1.0.
    pub(crate) fn corbaloc(&self) -> String {
        format!("corbaloc::{}/web", self.address)
    }

    /// Kills the balancer and starts it on the same file.
    #[track_caller]
    pub(crate) fn restart(self) -> Self {
        let mut balancer = self.balancer;
        balancer.process.kill();
        let balancer = Balancer::start_in(Folder::new(), &self.text);
        let ior = shown(&balancer, "ior");
        Self { balancer, ior, text: self.text, address: self.address }
    }

    /// Kills the balancer.
    pub(crate) fn kill(&mut self) {
        self.balancer.process.kill();
    }
}

impl Deref for OrbGroup {
    type Target = Balancer;

    fn deref(&self) -> &Balancer {
        &self.balancer
    }
}

/// Returns a member as the file lists it, by its reference.
fn entry(member: &OrbMember) -> String {
    format!("{{ ior = \"{}\" }}", member.ior)
}

/// Returns the output of `plimsoll ior show` in this format.
#[track_caller]
pub(crate) fn shown(balancer: &Balancer, format: &str) -> String {
    let run = balancer.run(&["ior", "show", "--group", "web", "-o", format]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    run.out.trim().to_owned()
}

/// Starts servers on omniORB that shed, called `m0`, `m1` and so on, and a balancer in front of them that
/// they know.
#[track_caller]
pub(crate) fn shedding(count: usize, binding: &str) -> (Vec<OrbMember>, OrbGroup) {
    let folder = Folder::new();
    let file = format!("file:{}", folder.join("group.ior").display());
    let members = OrbMember::several(count, &["--group", &file]);
    let entries: Vec<String> = members.iter().map(entry).collect();
    let group = OrbGroup::in_folder(folder, binding, &entries, "");
    for member in &members {
        member.process.line("group known");
    }
    (members, group)
}

/// Returns the number of oneways that these servers took, when there were `expected` and a moment later.
#[track_caller]
pub(crate) fn notes(members: &[OrbMember], expected: usize) -> usize {
    let count = || {
        let of = |member: &OrbMember| {
            Orb::Omni.calls(&member.ior, "noted")[0].field("noted")?.parse::<usize>().ok()
        };
        members.iter().filter_map(of).sum::<usize>()
    };
    until("all oneways came", || count() >= expected);
    count()
}
