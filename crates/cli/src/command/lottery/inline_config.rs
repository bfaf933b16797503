//! A lottery's daemon on the command line, instead of in a file.

use std::fmt::Write as _;

/// The contents of a configuration file, as options.
#[derive(clap::Args, Debug)]
#[group(id = "flags", multiple = true)]
pub(super) struct InlineConfigArgs {
    /// Number of the daemon and its server, unique in the cluster: 1 to 65535
    #[arg(short, long, value_name = "NUMBER", required_unless_present = "config")]
    member: Option<u16>,

    /// Listening address of the daemon; port 0 selects a free port
    #[arg(short, long, value_name = "ADDRESS", required_unless_present = "config")]
    listen: Option<String>,

    /// Address for the other daemons, if it is not the listening address
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,

    /// Other daemons; one that runs is sufficient to discover all
    #[arg(short, long, value_name = "HOST:PORT", value_delimiter = ',')]
    peers: Vec<String>,

    /// Multicast group and port of all daemons, if the network carries multicast
    #[arg(long, value_name = "ADDRESS")]
    multicast: Option<String>,

    /// File with the keys of the cluster, the same on all hosts; created if missing (see --new-keys)
    #[arg(short, long, value_name = "FILE", required_unless_present = "config")]
    keys: Option<String>,

    /// Service of the server and its address: web=10.0.0.1:80,capacity=4,health=/healthz,load=cpu (health=tcp
    /// only connects); repeatable
    #[arg(short, long, value_name = "NAME=HOST:PORT[,...]")]
    service: Vec<String>,

    /// Time for which a client may reuse an answer
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,

    /// Time until a new server receives its full share [default: 10s]
    #[arg(long, value_name = "TIME")]
    slow_start: Option<String>,

    /// Maximum request rate per second of one address, above which requests are ignored; 0 for no limit
    /// [default: 20000]
    #[arg(long, value_name = "NUMBER")]
    rate: Option<u32>,

    /// Listening address for the reports of programs (POST /v1/report), and for /load and /metrics
    #[arg(long, value_name = "ADDRESS")]
    status: Option<String>,

    /// Control socket for drains, key rotation and the other commands of the owner: a Unix socket, mode 0600
    /// (unix:/run/plimsoll-lottery.sock)
    #[arg(long, value_name = "ADDRESS")]
    control: Option<String>,
}

impl InlineConfigArgs {
    /// Returns the options as a file, so that they are checked like a file.
    pub(super) fn to_toml(&self) -> Result<String, String> {
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key} = {value}");
        };
        if let Some(member) = self.member {
            line("member", &member.to_string());
        }
        if let Some(rate) = self.rate {
            line("rate", &rate.to_string());
        }
        let options = [
            ("listen", &self.listen),
            ("address", &self.address),
            ("multicast", &self.multicast),
            ("keys", &self.keys),
            ("ttl", &self.ttl),
            ("slow_start", &self.slow_start),
            ("status", &self.status),
        ];
        for (key, value) in options {
            if let Some(value) = value {
                line(key, &quoted(value));
            }
        }
        let peers: Vec<String> = self.peers.iter().map(|peer| quoted(peer)).collect();
        line("peers", &format!("[{}]", peers.join(", ")));
        if let Some(control) = &self.control {
            line("admin.control", &quoted(control));
        }
        for service in &self.service {
            text += &service_table(service)?;
        }
        Ok(text)
    }
}

/// Returns the `[[service]]` of `web=10.0.0.1:80,capacity=4,health=/healthz,load=cpu`.
fn service_table(service: &str) -> Result<String, String> {
    let fields = split_fields(service);
    let mut fields = fields.iter().copied();
    let (name, server) = fields
        .next()
        .and_then(|first| first.split_once('='))
        .ok_or_else(|| format!("`{service}` is not a service: write NAME=HOST:PORT"))?;
    let mut metrics = Vec::new();
    let mut text = format!("[[service]]\nname = {}\nserver = {}\n", quoted(name), quoted(server));
    for field in fields {
        let line = match field.split_once('=') {
            Some(("capacity", number)) if number.parse::<u16>().is_ok() => format!("capacity = {number}"),
            Some(("id", number)) if number.parse::<u32>().is_ok() => format!("id = {number}"),
            Some(("load", load)) => format!("load = {}", quoted(load)),
            Some(("scrape", page)) => format!("scrape = {}", quoted(page)),
            Some(("metric", metric)) => {
                metrics.push(quoted(metric));
                continue;
            }
            Some(("cgroup", group)) => format!("cgroup = {}", quoted(group)),
            Some(("port", port)) if port.parse::<u16>().is_ok() => format!("port = {port}"),
            Some(("info", info)) => format!("info = {}", quoted(info)),
            Some(("health", "tcp")) => "health = { tcp = true }".to_owned(),
            Some(("health", path)) => format!("health = {{ http = {} }}", quoted(path)),
            _ => {
                return Err(format!(
                    "`{field}` says nothing of a service: there are capacity=0..65535, id=NUMBER, info=TEXT, \
                     load=EXPRESSION, \
                     health=/PATH or health=tcp, scrape=URL with metric=[NAME=]SERIES, cgroup=PATH and \
                     port=PORT"
                ));
            }
        };
        text += &line;
        text.push('\n');
    }
    if !metrics.is_empty() {
        text += &format!("metrics = [{}]\n", metrics.join(", "));
    }
    Ok(text)
}

/// Splits a text at commas, except those within brackets, as an expression may have some.
fn split_fields(service: &str) -> Vec<&str> {
    let (mut depth, mut start, mut fields) = (0_u32, 0, Vec::new());
    for (index, char) in service.char_indices() {
        match char {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                fields.push(&service[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    fields.push(&service[start..]);
    fields
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_written_as_a_file_has_it() {
        let text = service_table("web=10.0.0.1:80,capacity=4,info=zone=a,health=/a\"b,load=cpu / 2").unwrap();
        insta::assert_snapshot!(text, @r#"
        [[service]]
        name = "web"
        server = "10.0.0.1:80"
        capacity = 4
        info = "zone=a"
        health = { http = '/a"b' }
        load = "cpu / 2"
        "#);
        let text =
            service_table("web=[::1]:80,load=[cpu, in_flight / 8]|max,health=/a?b=(x,y),capacity=4").unwrap();
        insta::assert_snapshot!(text, @r#"
        [[service]]
        name = "web"
        server = "[::1]:80"
        load = "[cpu, in_flight / 8]|max"
        health = { http = "/a?b=(x,y)" }
        capacity = 4
        "#);
        let text = service_table(
            "web=10.0.0.1:80,scrape=http://[::1]:9/,metric=rps=rate(x{a=\"b\",c=\"d\"}),metric=y,\
             port=80,cgroup=a.slice",
        )
        .unwrap();
        insta::assert_snapshot!(text, @r#"
        [[service]]
        name = "web"
        server = "10.0.0.1:80"
        scrape = "http://[::1]:9/"
        port = 80
        cgroup = "a.slice"
        metrics = ['rps=rate(x{a="b",c="d"})', "y"]
        "#);
        for invalid in
            ["web", "web=1:1,capacity=x", "web=1:1,capacity=70000", "web=1:1,weight=1", "web=1:1,x"]
        {
            assert!(service_table(invalid).is_err(), "{invalid}");
        }
    }
}
