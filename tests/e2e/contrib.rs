//! The files in `contrib/`: the Grafana dashboard and the Prometheus alerts refer to existing metrics with
//! their labels.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::stage::{Balancer, Folder, Member, get, part, until, web};

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

fn dashboard() -> Value {
    serde_json::from_str(&std::fs::read_to_string(contrib("grafana/plimsoll.json")).unwrap()).unwrap()
}

fn rules() -> String {
    let text = std::fs::read_to_string(contrib("prometheus/plimsoll.rules.yml")).unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Collects every text under these keys.
fn texts(value: &Value, keys: &[&str], found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if keys.contains(&&**key) => found.push(text.clone()),
                    other => texts(other, keys, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| texts(value, keys, found)),
        _ => {}
    }
}

/// Returns the metrics in a PromQL text, each with the labels in the braces behind it.
fn metrics(text: &str) -> Vec<(String, Vec<String>)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = ["plimsoll_", "process_"].iter().filter_map(|begin| rest.find(begin)).min() {
        let whole = at == 0 || !rest[..at].ends_with(word);
        rest = &rest[at..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        let inside = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let parts = inside.map_or("", |(inside, _)| inside).split(',').map(str::trim);
        let labels = parts.filter_map(|part| Some(part.split_once(['=', '!'])?.0.trim().to_owned()));
        if whole {
            found.push((name.to_owned(), labels.filter(|label| !label.is_empty()).collect()));
        }
    }
    found
}

/// Starts a balancer with traffic, reports and sessions, so that most metrics have samples.
fn busy() -> (Balancer, Member, String) {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let more = folder.write("more.members", "members = []\n");
    let more = format!("discover = [{{ file = \"{}\", allow_empty = true }}]\n", more.display());
    let text = web(&[member.address], &(more + "[group.monitor]\nmetric = \"cpu\"\n"));
    let balancer = Balancer::start_in(folder, &text);
    let report = format!("member={}&cpu=0.4", member.address);
    let to = format!("http://{}/v1/report", balancer.reports());
    let curl =
        Command::new(part("curl")).args(["-s", "--noproxy", "*", "-d", &report, &to]).status().unwrap();
    assert!(curl.success());
    assert_eq!(get(balancer.address(), "/").status, 200);
    until("the load is told", || balancer.metrics().contains("\nplimsoll_member_load{"));
    let page = balancer.metrics();
    (balancer, member, page)
}

/// Returns the labels of a metric from the guide's tables; the last table may shorten names.
fn documented(name: &str) -> Vec<String> {
    let own = name.trim_start_matches("plimsoll_");
    for (page, place) in [("capacity.md", 2), ("observability.md", 3)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        for row in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let fits = |listed: &str| {
                let listed = listed.trim_start_matches("plimsoll_");
                listed == own || listed.starts_with('_') && own.ends_with(listed)
            };
            if cells[1].split('`').skip(1).step_by(2).any(fits) {
                let labels = cells[place].split(',').map(str::trim);
                return labels.filter(|label| !label.is_empty()).map(str::to_owned).collect();
            }
        }
    }
    panic!("the guide has no table with {name}")
}

#[test]
fn the_guide_names_every_alert() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/grafana.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rules = rules();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(page.contains(&format!("`{alert}`")), "grafana.md has no {alert}");
    }
}

fn there(page: &str, metrics: &[(String, Vec<String>)]) {
    assert!(metrics.len() > 10, "{metrics:?}");
    for (name, labels) in metrics {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let family = [Some(&**name), base]
            .into_iter()
            .flatten()
            .find(|family| page.contains(&format!("# TYPE {family} ")));
        assert!(family.is_some(), "there is no metric {name}");
        let mut samples =
            page.lines().filter(|line| line.strip_prefix(&**name).is_some_and(|rest| rest.starts_with('{')));
        // The guide lists the labels of metrics without a sample here.
        let sample = samples.next();
        let labels: Vec<&String> = labels.iter().filter(|label| *label != "instance").collect();
        let unknown = sample.is_none() && !labels.is_empty();
        let known = if unknown { documented(family.unwrap()) } else { Vec::new() };
        for label in labels {
            let there = match sample {
                Some(sample) => sample.contains(&format!("{label}=\"")),
                None => known.contains(label) || label == "le" && base.is_some(),
            };
            assert!(there, "{name} has no label {label}: {sample:?}, by the guide {known:?}");
        }
    }
}

#[test]
fn every_metric_that_is_named_is_there() {
    let (_balancer, _member, page) = busy();
    let mut queries = Vec::new();
    texts(&dashboard(), &["expr", "query", "definition"], &mut queries);
    let named: Vec<_> = queries.iter().flat_map(|query| metrics(query)).collect();
    there(&page, &named);
    let rules: String = rules()
        .lines()
        .filter(|line| !line.contains("summary:") && !line.contains("description:"))
        .map(|line| format!("{line}\n"))
        .collect();
    there(&page, &metrics(&rules));
}

#[test]
fn the_dashboard_is_one() {
    let dashboard = dashboard();
    assert_eq!(dashboard["uid"], "plimsoll");
    let variables: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its number is another's");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title}");
        for y in at("y")..at("y") + at("h") {
            for x in at("x")..at("x") + at("w") {
                assert!(places.insert((x, y)), "{title} lies over another");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let mut refs = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            assert!(refs.insert(target["refId"].as_str().unwrap()), "{title}");
            let expr = target["expr"].as_str().unwrap();
            for variable in expr.split('$').skip(1) {
                let end =
                    variable.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(variable.len());
                let name = &variable[..end];
                assert!(variables.contains(name) || name == "__rate_interval", "{title}: ${name}");
            }
            assert_eq!(expr.matches('(').count(), expr.matches(')').count(), "{title}: {expr}");
        }
    }
    assert!(ids.len() > 20);
}

#[test]
fn prometheus_accepts_the_rules_and_they_fire() {
    for command in [["check", "rules"], ["test", "rules"]] {
        let file = if command[0] == "check" { "plimsoll.rules.yml" } else { "plimsoll.test.yml" };
        let output = Command::new(part("promtool"))
            .args(command)
            .arg(file)
            .current_dir(contrib("prometheus"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
    }
}

#[test]
fn prometheus_accepts_the_queries_of_the_dashboard() {
    let mut queries = Vec::new();
    texts(&dashboard(), &["expr"], &mut queries);
    let mut text = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (index, query) in queries.iter().enumerate() {
        let query =
            query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$group", ".*");
        text += &format!("  - record: query:number{index}\n    expr: {}\n", Value::String(query));
    }
    let folder = Folder::new();
    let file = folder.write("dashboard.yml", text);
    let output = Command::new(part("promtool")).args(["check", "rules"]).arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}
