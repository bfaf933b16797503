//! A strict reader of the Prometheus text format 0.0.4: what a scraper may forgive, it does not.

use std::collections::{BTreeMap, BTreeSet};

/// Series with labels sorted and unescaped, `name{a="1",b="2"}`, and their values.
pub(crate) struct Page(BTreeMap<String, f64>);

impl Page {
    pub(crate) fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.0.keys()))
    }
}

struct Family {
    name: String,
    kind: String,
    /// The histograms: labels without `le` → (last bound, last count, sum seen, count).
    histograms: BTreeMap<String, Histogram>,
}

#[derive(Default)]
struct Histogram {
    last: Option<(f64, f64)>,
    sum: bool,
    count: Option<f64>,
}

pub(crate) fn parse(text: &str) -> Result<Page, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    let (mut series, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut family: Option<Family> = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let fail = |why: &str| Err(format!("{why}: {line}"));
        if let Some(help) = line.strip_prefix("# HELP ") {
            if let Some(family) = family.take() {
                finish(&family)?;
            }
            let Some((name, _)) = help.split_once(' ') else { return fail("HELP without a text") };
            let of = format!("# TYPE {name} ");
            let Some(kind) = lines.next().and_then(|next| next.strip_prefix(&of)) else {
                return fail("no TYPE after HELP");
            };
            if !["counter", "gauge", "histogram", "summary"].contains(&kind) {
                return fail("unknown type");
            }
            if !is_name(name, ":") || !seen.insert(name.to_owned()) {
                return fail("bad or repeated family");
            }
            if (kind == "counter") != name.ends_with("_total") {
                return fail("counters, and only they, end in _total");
            }
            family = Some(Family { name: name.into(), kind: kind.into(), histograms: BTreeMap::new() });
            continue;
        }
        let Some(family) = &mut family else { return fail("a sample before its family") };
        let (name, labels, value) = sample(line)?;
        let Some(suffix) = name.strip_prefix(&*family.name) else {
            return fail("a sample of another family");
        };
        let allowed: &[&str] = match &*family.kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["", "_sum", "_count"],
            _ => &[""],
        };
        if !allowed.contains(&suffix) {
            return fail("a suffix that the type does not have");
        }
        if family.kind == "histogram" {
            let mut rest = labels.clone();
            let bound = rest.remove("le");
            let one = family.histograms.entry(join("", &rest)).or_default();
            match (suffix, bound) {
                ("_bucket", Some(bound)) => {
                    let bound: f64 = bound.replace("+Inf", "inf").parse().map_err(|_| line.to_owned())?;
                    if one.last.is_some_and(|(last, count)| last >= bound || count > value) {
                        return fail("buckets do not rise");
                    }
                    one.last = Some((bound, value));
                }
                ("_sum", None) => one.sum = true,
                ("_count", None) => one.count = Some(value),
                _ => return fail("le is for buckets"),
            }
        }
        if series.insert(join(&name, &labels), value).is_some() {
            return fail("the same series twice");
        }
    }
    if let Some(family) = &family {
        finish(family)?;
    }
    Ok(Page(series))
}

fn finish(family: &Family) -> Result<(), String> {
    for (labels, one) in &family.histograms {
        if one.last != one.count.map(|count| (f64::INFINITY, count)) || !one.sum {
            return Err(format!("{}{labels}: +Inf, _sum and _count do not agree", family.name));
        }
    }
    Ok(())
}

fn sample(line: &str) -> Result<(String, BTreeMap<String, String>, f64), String> {
    let bad = |why: &str| format!("{why}: {line}");
    let end = line.find(['{', ' ']).ok_or_else(|| bad("no value"))?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name, ":") {
        return Err(bad("bad name"));
    }
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, quoted) = rest.split_once("=\"").ok_or_else(|| bad("no label"))?;
            let mut value = String::new();
            let mut letters = quoted.char_indices();
            let close = loop {
                match letters.next().ok_or_else(|| bad("open quote"))? {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match letters.next() {
                        Some((_, 'n')) => '\n',
                        Some((_, letter @ ('\\' | '"'))) => letter,
                        _ => return Err(bad("bad escape")),
                    }),
                    (_, letter) => value.push(letter),
                }
            };
            if !is_name(label, "") || labels.insert(label.to_owned(), value).is_some() {
                return Err(bad("bad or repeated label"));
            }
            rest = &quoted[close + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').ok_or_else(|| bad("open brace"))?;
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| bad("no space"))?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        digits if digits.bytes().all(|b| b.is_ascii_digit() || b"+-.e".contains(&b)) => {
            digits.parse().map_err(|_| bad("bad value"))?
        }
        _ => return Err(bad("bad value")),
    };
    Ok((name.to_owned(), labels, value))
}

fn is_name(name: &str, also: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || also.contains(c))
}

fn join(name: &str, labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return name.to_owned();
    }
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!("{name}{{{}}}", labels.join(","))
}

#[test]
fn the_reader_is_strict() {
    let head = "# HELP a_total x\n# TYPE a_total counter\n";
    assert!(parse(&format!("{head}a_total{{b=\"c\\\\\\\"\\n\"}} 1\n")).is_ok());
    for bad in [
        "a_total 1",
        "a_total{b=\"c\"} 1\na_total{b=\"c\"} 2\n",
        "a_total{b=\"\\t\"} 1\n",
        "a_total{b=\"c\" 1\n",
        "a_total{1b=\"c\"} 1\n",
        "b_total 1\n",
        "a_total inf\n",
        head,
    ] {
        assert!(parse(&format!("{head}{bad}")).is_err(), "{bad}");
    }
    let head = "# HELP h x\n# TYPE h histogram\n";
    for bad in [
        "h_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 2\n",
        "h_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 3\n",
        "h_bucket{le=\"+Inf\"} 2\nh_count 2\n",
        "h_bucket{le=\"1\"} 2\nh_sum 1\nh_count 2\n",
    ] {
        assert!(parse(&format!("{head}{bad}")).is_err(), "{bad}");
    }
}
