//! A summary of a file: `2 listeners, 1 group, 3 members`. For members outside the file it names their
//! source, because the number of listed members would look like the total.

use super::{Config, pluralize};

impl Config {
    /// Returns the numbers of listeners, groups and members; `in_files` members are in files that it names
    /// now.
    pub fn summary(&self, file_members: usize) -> String {
        let mut summary_parts =
            vec![pluralize(self.listeners.len(), "listener"), pluralize(self.groups.len(), "group")];
        summary_parts.extend(self.describe_members(file_members));
        summary_parts.join(", ")
    }

    fn describe_members(&self, file_members: usize) -> Vec<String> {
        let mut summary_parts = Vec::new();
        let scalers = self.groups.iter().filter_map(|group| group.scaler.as_ref());
        // A scaler that only advises starts no members.
        let scalers: Vec<_> = scalers.filter(|scaler| !scaler.advice).collect();
        if let Some(first) = scalers.first() {
            let subject =
                if scalers.len() == 1 { "the scaler".to_owned() } else { pluralize(scalers.len(), "scaler") };
            let (min, max) = (first.min, first.max);
            // The bounds of several scalers are not those of any one.
            let bounds = if scalers.len() == 1 { format!(", {min} to {max}") } else { String::new() };
            summary_parts.push(format!("members by {subject}{bounds}"));
        }
        let mut kinds: Vec<&str> = Vec::new();
        for kind in self.groups.iter().flat_map(|group| &group.discover).flat_map(|source| source.kinds()) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let has_registered = kinds.contains(&REGISTERED);
        kinds.retain(|kind| *kind != REGISTERED);
        if !kinds.is_empty() {
            let now =
                if file_members > 0 { format!(" ({file_members} in files now)") } else { String::new() };
            summary_parts.push(format!("members found by {}{now}", kinds.join(", ")));
        }
        if has_registered {
            summary_parts.push("members that register".to_owned());
        }
        if self.groups.iter().any(|group| group.lottery.is_some()) {
            summary_parts.push("members that a lottery draws".to_owned());
        }
        let member_count = self.member_count();
        if member_count > 0 || summary_parts.is_empty() {
            summary_parts.insert(0, pluralize(member_count, "member"));
        }
        summary_parts
    }
}

/// The kind of source that finds no members by itself.
const REGISTERED: &str = "registered";

#[cfg(test)]
mod tests {
    use crate::parse;

    #[test]
    fn members_that_are_not_in_the_file_are_said_to_be_elsewhere() {
        let summary_of = |groups: &str, file_members| {
            let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{groups}");
            let file =
                parse("plimsoll.toml", text.into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
            file.config.summary(file_members)
        };
        let group = |name: &str, rest: &str| format!("[[group]]\nname = \"{name}\"\n{rest}\n");
        let scaler = |max| {
            format!(
                "health = {{ tcp = true }}\n[group.scaler]\nmin = 2\nmax = {max}\ntarget = {{ headroom = \
                 0.3 }}\n\
                 process = {{ command = [\"/bin/serve\", \"{{address}}\"] }}"
            )
        };
        let web_group = |rest: &str| group("web", rest);
        for (groups, file_members, expected) in [
            (web_group("members = [\"127.0.0.1:1\"]"), 0, "1 group, 1 member"),
            (web_group(&scaler(60)), 0, "1 group, members by the scaler, 2 to 60"),
            (
                web_group(&format!("members = [\"127.0.0.1:1\"]\n{}", scaler(60))),
                0,
                "1 group, 1 member, members by the scaler, 2 to 60",
            ),
            (web_group(&scaler(60)) + &group("b", &scaler(6)), 0, "2 groups, members by 2 scalers"),
            (web_group("discover = [{ dns = \"web:80\" }]"), 0, "1 group, members found by dns"),
            (
                web_group("discover = [{ file = \"/a\" }, { dns = \"web:80\" }, { dns = \"mail:80\" }]"),
                3,
                "1 group, members found by file, dns (3 in files now)",
            ),
            (web_group("discover = [{ registered = true }]"), 0, "1 group, members that register"),
            (
                web_group("lottery = { service = \"web\", daemons = [\"d:1\"], keys = \"/k\" }"),
                0,
                "1 group, members that a lottery draws",
            ),
        ] {
            assert_eq!(summary_of(&groups, file_members), format!("1 listener, {expected}"), "{groups}");
        }
    }
}
