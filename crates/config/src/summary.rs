//! A summary of a file: `2 listeners, 1 group, 3 members`. For members outside the file it names their
//! source, because the number of listed members would look like the total.

use super::{Config, pluralize};

impl Config {
    /// Returns the numbers of listeners, groups and members; `in_files` members are in files that it names
    /// now.
    pub fn summary(&self, in_files: usize) -> String {
        let mut parts =
            vec![pluralize(self.listeners.len(), "listener"), pluralize(self.groups.len(), "group")];
        parts.extend(self.describe_members(in_files));
        parts.join(", ")
    }

    fn describe_members(&self, in_files: usize) -> Vec<String> {
        let mut parts = Vec::new();
        let scalers = self.groups.iter().filter_map(|group| group.scaler.as_ref());
        // A scaler that only advises starts no members.
        let scalers: Vec<_> = scalers.filter(|scaler| !scaler.advice).collect();
        if let Some(first) = scalers.first() {
            let who =
                if scalers.len() == 1 { "the scaler".to_owned() } else { pluralize(scalers.len(), "scaler") };
            let (min, max) = (first.min, first.max);
            // The bounds of several scalers are not those of any one.
            let bounds = if scalers.len() == 1 { format!(", {min} to {max}") } else { String::new() };
            parts.push(format!("members by {who}{bounds}"));
        }
        let mut kinds: Vec<&str> = Vec::new();
        for kind in self.groups.iter().flat_map(|group| &group.discover).flat_map(|source| source.kinds()) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let registered = kinds.contains(&REGISTERED);
        kinds.retain(|kind| *kind != REGISTERED);
        if !kinds.is_empty() {
            let now = if in_files > 0 { format!(" ({in_files} in files now)") } else { String::new() };
            parts.push(format!("members found by {}{now}", kinds.join(", ")));
        }
        if registered {
            parts.push("members that register".to_owned());
        }
        if self.groups.iter().any(|group| group.lottery.is_some()) {
            parts.push("members that a lottery draws".to_owned());
        }
        let listed = self.member_count();
        if listed > 0 || parts.is_empty() {
            parts.insert(0, pluralize(listed, "member"));
        }
        parts
    }
}

/// The kind of source that finds no members by itself.
const REGISTERED: &str = "registered";

#[cfg(test)]
mod tests {
    use crate::parse;

    #[test]
    fn members_that_are_not_in_the_file_are_said_to_be_elsewhere() {
        let said = |groups: &str, in_files| {
            let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{groups}");
            let file =
                parse("plimsoll.toml", text.into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
            file.config.summary(in_files)
        };
        let group = |name: &str, rest: &str| format!("[[group]]\nname = \"{name}\"\n{rest}\n");
        let scaler = |max| {
            format!(
                "health = {{ tcp = true }}\n[group.scaler]\nmin = 2\nmax = {max}\ntarget = {{ headroom = \
                 0.3 }}\n\
                 process = {{ command = [\"/bin/serve\", \"{{address}}\"] }}"
            )
        };
        let web = |rest: &str| group("web", rest);
        for (groups, in_files, whose) in [
            (web("members = [\"127.0.0.1:1\"]"), 0, "1 group, 1 member"),
            (web(&scaler(60)), 0, "1 group, members by the scaler, 2 to 60"),
            (
                web(&format!("members = [\"127.0.0.1:1\"]\n{}", scaler(60))),
                0,
                "1 group, 1 member, members by the scaler, 2 to 60",
            ),
            (web(&scaler(60)) + &group("b", &scaler(6)), 0, "2 groups, members by 2 scalers"),
            (web("discover = [{ dns = \"web:80\" }]"), 0, "1 group, members found by dns"),
            (
                web("discover = [{ file = \"/a\" }, { dns = \"web:80\" }, { dns = \"mail:80\" }]"),
                3,
                "1 group, members found by file, dns (3 in files now)",
            ),
            (web("discover = [{ registered = true }]"), 0, "1 group, members that register"),
            (
                web("lottery = { service = \"web\", daemons = [\"d:1\"], keys = \"/k\" }"),
                0,
                "1 group, members that a lottery draws",
            ),
        ] {
            assert_eq!(said(&groups, in_files), format!("1 listener, {whose}"), "{groups}");
        }
    }
}
