//! The commands in groups, as `plimsoll --help` lists them.

use std::io::IsTerminal as _;

use clap::Command;

use crate::terminal;

/// The headings of the help, and the commands below each.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run", &["up", "agent", "lottery", "supervise", "demo"]),
    ("Look", &["status", "members", "explain", "top", "check", "events", "bindings", "leases", "fleet"]),
    (
        "Act",
        &[
            "drain", "undrain", "disable", "enable", "add", "remove", "scale", "set", "reload", "upgrade",
            "stop",
        ],
    ),
    ("Measure", &["load", "member", "pick", "lab"]),
    ("Model", &["model"]),
    ("Help", &["config", "cert", "ior", "completions", "man", "help"]),
];

/// The columns before a command's description.
const INDENT: usize = 15;
/// The narrowest and the widest line.
const MIN_WIDTH: usize = 40;
const MAX_WIDTH: usize = 100;

/// Returns the command tree with a help that lists the commands in groups.
pub(super) fn with_groups(mut tree: Command) -> Command {
    tree.build();
    let columns = terminal::size(std::io::stdout()).0.clamp(MIN_WIDTH, MAX_WIDTH);
    let columns = if std::io::stdout().is_terminal() { columns } else { MAX_WIDTH };
    let listing = listing(&tree, columns);
    // Clap has no headings for commands: it lists none, and the template has them.
    let names: Vec<String> = tree.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names {
        tree = tree.mut_subcommand(name, |command| command.hide(true));
    }
    let usage = format!("{} [OPTIONS] <COMMAND>", tree.get_name());
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listing}{{all-args}}");
    tree.override_usage(usage).help_template(template)
}

fn listing(tree: &Command, columns: usize) -> String {
    let (mut text, header) = (String::new(), *tree.get_styles().get_header());
    for (heading, names) in GROUPS {
        text.push_str(&format!("{header}{heading}:{header:#}\n"));
        for name in names {
            let about = tree.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&entry(name, &about, columns));
        }
        text.push('\n');
    }
    text
}

/// Returns the lines of a command: its name, and its description in a column.
fn entry(name: &str, about: &str, columns: usize) -> String {
    let mut lines = vec![format!("  {name:<width$}", width = INDENT - 2)];
    for word in about.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        let used = line.chars().count();
        if used > INDENT && used + 1 + word.chars().count() > columns {
            lines.push(format!("{:INDENT$}{word}", ""));
            continue;
        }
        if used > INDENT {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let mut tree = Cli::command();
        tree.build();
        let mut known: Vec<&str> = tree.get_subcommands().map(Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(known, listed);
    }

    #[test]
    fn the_help_shows_groups_and_no_line_is_too_long() {
        let help = with_groups(Cli::command()).render_help().to_string();
        for (heading, names) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{help}");
            for name in names {
                assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
            }
        }
        assert!(!help.contains("Commands:"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= MAX_WIDTH), "{help}");
    }
}
