//! An operator's orders to a member.

use super::member;

#[test]
fn an_operator_may_ask_how_many_requests_came() {
    let member = member(|spec| spec.admin = true);
    let close = "HTTP/1.1\r\nhost: m\r\nconnection: close\r\n\r\n";
    for _ in 0..3 {
        member.say(&format!("GET / {close}"), "");
    }
    let count = member.say(&format!("GET /_plimsoll/count {close}"), "");
    assert!(count.ends_with("{\"member\":\"m1\",\"requests\":3}\n"), "{count}");
    member.stop();
}

#[test]
fn an_operator_may_ask_how_busy_it_is() {
    let member = member(|spec| {
        spec.admin = true;
        spec.cores = Some(2.0);
        spec.service = "const:60ms".parse().unwrap();
    });
    let close = "HTTP/1.1\r\nhost: m\r\nconnection: close\r\n\r\n";
    assert_eq!(member.tells("load")["busy"], 0.0);
    for _ in 0..2 {
        member.say(&format!("GET / {close}"), "");
    }
    let said = member.tells("load");
    let busy = said["busy"].as_f64().unwrap();
    assert!((busy - 0.12).abs() < 1e-6, "{said}");
    let cpu = said["values"]["cpu"].as_f64().unwrap();
    // One of two cores while the requests were in service, and less with other delays.
    assert!(cpu > 0.0 && cpu <= 0.501 && said["values"]["cpus"] == 2.0, "{said}");
    member.stop();
}
