use proptest::prelude::*;

use super::*;

fn collected(value: impl AsRef<[u8]>) -> Result<Vec<(MetricKind, String, f64)>, OrcaError> {
    let mut metrics = Vec::new();
    read(value.as_ref(), |metric| metrics.push((metric.kind, metric.name.to_owned(), metric.value)))?;
    Ok(metrics)
}

fn fields(list: &[(&str, f64)]) -> Vec<(MetricKind, String, f64)> {
    list.iter().map(|(name, value)| (MetricKind::Field, (*name).to_owned(), *value)).collect()
}

fn named(kind: MetricKind, name: &str, value: f64) -> (MetricKind, String, f64) {
    (kind, name.to_owned(), value)
}

/// A message with all fields, encoded by hand after protobuf's rules: cpu 0.5, mem 0.25, rps 300,
/// request_cost disk=2, utilization gpu=0.75, rps_fractional 1000, eps 2, named q=-1, application 1.5.
const BIN: &str = "CQAAAAAAAOA/EQAAAAAAANA/GKwCIg8KBGRpc2sRAAAAAAAAAEAqDgoDZ3B1EQAAAAAAAOg/MQAAAAAAQI9AOQAAA\
                   AAAAABAQgwKAXERAAAAAAAA8L9JAAAAAAAA+D8=";

#[test]
fn golden_text() {
    let values =
        fields(&[("cpu_utilization", 0.3), ("mem_utilization", 0.8), ("rps_fractional", 10.0), ("eps", 1.0)]);
    let mut with_named = values.clone();
    with_named.push(named(MetricKind::Named, "custom", 0.4));
    let text = "cpu_utilization=0.3, mem_utilization=0.8, rps_fractional=10.0, eps=1";
    assert_eq!(collected(format!("TEXT {text}, named_metrics.custom=0.4")), Ok(with_named));
    assert_eq!(collected(text), Ok(values.clone()));
    assert_eq!(collected(text.replace('=', ":")), Ok(values));
    assert_eq!(
        collected("TEXT utilization.gpu=0.5,request_cost.bytes = 1e3 ,, named_metrics.a:b.c=-2"),
        Ok(vec![
            named(MetricKind::Utilization, "gpu", 0.5),
            named(MetricKind::RequestCost, "bytes", 1000.0),
            named(MetricKind::Named, "a:b.c", -2.0)
        ])
    );
    assert_eq!(collected("TEXT from_the_future=1, eps=2"), Ok(fields(&[("eps", 2.0)])));
    assert_eq!(collected("TEXT "), Ok(Vec::new()));
}

#[test]
fn golden_json() {
    let json = r#"{"cpu_utilization": 0.3, "rpsFractional": "10.0", "eps": null, "extra": {"a": [1, "\"", {}, true]},
                   "named_metrics": {"custom": 4e-1}, "requestCost": {}, "utilization": null}"#;
    let expected = vec![
        named(MetricKind::Field, "cpu_utilization", 0.3),
        named(MetricKind::Field, "rps_fractional", 10.0),
        named(MetricKind::Named, "custom", 0.4),
    ];
    assert_eq!(collected(format!("JSON {json}")), Ok(expected.clone()));
    assert_eq!(collected(json), Ok(expected));
    assert_eq!(collected("JSON {}"), Ok(Vec::new()));
}

#[test]
fn golden_bin() {
    let expected = vec![
        named(MetricKind::Field, "cpu_utilization", 0.5),
        named(MetricKind::Field, "mem_utilization", 0.25),
        named(MetricKind::Field, "rps", 300.0),
        named(MetricKind::RequestCost, "disk", 2.0),
        named(MetricKind::Utilization, "gpu", 0.75),
        named(MetricKind::Field, "rps_fractional", 1000.0),
        named(MetricKind::Field, "eps", 2.0),
        named(MetricKind::Named, "q", -1.0),
        named(MetricKind::Field, "application_utilization", 1.5),
    ];
    assert_eq!(collected(format!("BIN {BIN}")), Ok(expected.clone()));
    for value in [BIN, BIN.trim_end_matches('=')] {
        let mut metrics = Vec::new();
        read_bin(value.as_bytes(), |metric| metrics.push(named(metric.kind, metric.name, metric.value)))
            .unwrap();
        assert_eq!(metrics, expected);
    }
}

#[test]
fn what_is_wrong_is_refused_whole() {
    let long = format!("TEXT named_metrics.{}=1", "a".repeat(MAX_NAME + 1));
    let many: String = (0..=MAX_METRICS).map(|n| format!("named_metrics.m{n}=1,")).collect();
    let huge = format!("TEXT {}", " ".repeat(MAX_LEN));
    let deep = format!("JSON {{\"x\": {}", "[".repeat(4000));
    for (value, expected) in [
        ("", "ok"),
        ("TEXT eps=nan", "not a number"),
        ("TEXT eps=inf", "not a number"),
        ("TEXT eps=1e999", "not finite"),
        ("TEXT eps=-1", "negative"),
        ("TEXT eps=1, eps=2", "twice"),
        ("TEXT eps=1, cpu_utilization", "no value"),
        ("TEXT =1", "no name"),
        ("TEXT named_metrics.=1", "empty"),
        ("TEXT named_metrics.a\"b=1", "character"),
        ("TEXT named_metrics.\u{fc}=1", "character"),
        ("BAD whatever", "no value"),
        (&long, "too long"),
        (&many, "too many"),
        (&format!("{huge}eps=1"), "too long"),
        ("JSON", "no object"),
        ("JSON []", "no object"),
        ("JSON {\"eps\": 1", "does not end"),
        ("JSON {\"eps\": 1} x", "follows"),
        ("JSON {\"eps\": NaN}", "not a number"),
        ("JSON {\"eps\": \"NaN\"}", "not a number"),
        ("JSON {\"eps\": true}", "not a number"),
        ("JSON {\"eps\": 1, \"eps\": 1}", "twice"),
        ("JSON {\"named_metrics\": {\"a\\n\": 1}}", "character"),
        ("JSON {\"named_metrics\": 1}", "no object"),
        ("JSON {\"eps", "does not end"),
        (&deep, "nested"),
        ("BIN A", "base64"),
        ("BIN AB==A", "base64"),
        ("BIN CQ", "cut"),
        ("BIN CQAAAAAAAPh/", "not finite"),
        ("BIN CAE=", "another type"),
    ] {
        let mut count = 0;
        match read(value.as_bytes(), |_| count += 1) {
            Ok(()) => assert_eq!(expected, "ok", "{value:.60}"),
            Err(OrcaError(message)) => assert!(message.contains(expected), "{value:.60}: {message}"),
        }
        assert_eq!(count, 0, "{value:.60}");
    }
}

#[test]
fn what_no_reader_takes_is_not_written() {
    let metrics = [
        OrcaMetric::field("cpu_utilization", 0.25),
        OrcaMetric::field("eps", f64::NAN),
        OrcaMetric::field("no_such_field", 1.0),
        OrcaMetric::named("rif", 7.0),
        OrcaMetric::named("a,b", 1.0),
        OrcaMetric { kind: MetricKind::Utilization, name: "gpu", value: -1.0 },
        OrcaMetric { kind: MetricKind::RequestCost, name: "bytes", value: 1e300 },
    ];
    let mut out = Vec::new();
    write_text(&mut out, metrics);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text, "TEXT cpu_utilization=0.25, named_metrics.rif=7, request_cost.bytes=1e300");
}

fn metrics() -> impl Strategy<Value = Vec<(MetricKind, String, f64)>> {
    let kind =
        prop_oneof![Just(MetricKind::Named), Just(MetricKind::Utilization), Just(MetricKind::RequestCost)];
    let map = (kind, "[!#-+\\--<>-\\[\\]-~]{1,64}", any::<f64>());
    let field = (
        Just(MetricKind::Field),
        prop::sample::select(FIELDS.to_vec()).prop_map(str::to_owned),
        any::<f64>(),
    );
    prop::collection::vec(prop_oneof![3 => map, 1 => field], 0..MAX_METRICS).prop_map(|mut metrics| {
        for (kind, _, value) in &mut metrics {
            *value = if value.is_finite() { *value } else { 0.0 };
            if matches!(kind, MetricKind::Field | MetricKind::Utilization) {
                *value = value.abs();
            }
        }
        let mut seen = std::collections::HashSet::new();
        metrics.retain(|(kind, name, _)| seen.insert((*kind, name.clone())));
        metrics
    })
}

proptest! {
    #[test]
    fn written_and_read_it_is_the_same(metrics in metrics()) {
        let mut out = Vec::new();
        let each = metrics.iter().map(|(kind, name, value)| OrcaMetric { kind: *kind, name, value: *value });
        write_text(&mut out, each);
        prop_assert!(out.len() <= MAX_LEN);
        prop_assert_eq!(collected(&out), Ok(metrics));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200), form in 0..4_usize,
    ) {
        let form = ["", "TEXT ", "JSON {", "BIN "][form];
        let _ = collected([form.as_bytes(), &bytes].concat());
        let mut found = MetricList::new();
        let _ = bin::read(&bytes, &mut found);
    }
}
