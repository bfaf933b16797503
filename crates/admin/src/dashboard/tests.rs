//! Tests of rendered pages: each page renders, external text stays escaped, and the contents are true.

use plimsoll_brain::status::{BalancerStatus, FleetStatus, LoadExplanation, MemberStatus};
use std::sync::Arc;

use tokio::sync::watch;

use super::test_data::{SampleBalancer, XSS};
use super::*;
use crate::AccessRules;
use crate::active_rules::ActiveRules;
use crate::endpoint::EndpointAuthenticator;
use crate::operation_lock::OperationLocks;

fn plane(told: SampleBalancer, powers: EndpointCapability) -> (AdminEndpoint, Arc<SampleBalancer>) {
    let told = Arc::new(told);
    let turns = Arc::new(OperationLocks::new());
    // Dropping the sender is an end only for those that wait for it.
    let (_, ended) = watch::channel(false);
    (AdminEndpoint::new(AdminBackend::Balancer(told.clone()), powers, None, turns, 4, ended), told)
}

fn page(
    plane: &AdminEndpoint,
    told: &SampleBalancer,
    path: &str,
) -> Result<Option<Result<String, String>>, String> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let place = PageUrl::parse(path).unwrap_or_else(|| panic!("{path}"));
    let caller = Caller::unix(0);
    build_balancer_page(plane, told, &caller, &place, path, &parse_fields(query))
}

fn text(plane: &AdminEndpoint, told: &SampleBalancer, path: &str) -> String {
    page(plane, told, path).unwrap().unwrap_or_else(|| panic!("no {path}")).unwrap()
}

/// Returns the paths of all pages of a balancer.
fn paths(told: &SampleBalancer) -> Vec<String> {
    let group = &told.status.groups[0];
    let mut paths =
        vec!["/dashboard".to_owned(), "/dashboard/events".to_owned(), "/dashboard/process".to_owned()];
    paths.push(urls::group_url(&group.name));
    paths.extend(group.members.iter().map(|member| urls::member_url(&group.name, &member.name)));
    paths.extend(told.entries.iter().map(|entry| urls::event_url(entry.seq)));
    let member = [("group", &*group.name), ("member", &*group.members[0].name)];
    paths.extend(["drain", "undrain", "disable", "enable"].map(|deed| urls::action_url(deed, &member)));
    let of = [("group", &*group.name), ("value", "random")];
    paths.extend(["disable-balancing", "enable-balancing"].map(|deed| urls::action_url(deed, &of[..1])));
    paths.push(urls::action_url("set", &of));
    let listener = [("listener", &*told.status.listeners[0].address)];
    paths.extend(["disable-listener", "enable-listener"].map(|deed| urls::action_url(deed, &listener)));
    paths
}

#[test]
fn every_page_is_made_for_those_who_act_and_for_those_who_look() {
    for powers in [EndpointCapability::Query, EndpointCapability::Command] {
        let (plane, told) = plane(SampleBalancer::new(), powers);
        for path in paths(&told) {
            let text = text(&plane, &told, &path);
            assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"), "{path}");
            for word in [
                "undefined",
                "none<",
                ">none",
                "NaN",
                "inf/s",
                "style=",
                "onclick",
                "<script>",
                "javascript:",
            ] {
                assert!(!text.contains(word), "{path}: {word}\n{text}");
            }
            assert_eq!(text.matches("<main").count(), 1, "{path}");
            assert_eq!(text.matches("<h1").count(), 1, "{path}");
            assert!(text.len() < 200_000, "{path}: {}", text.len());
        }
    }
}

#[test]
fn what_others_wrote_stays_text() {
    for powers in [EndpointCapability::Query, EndpointCapability::Command] {
        let (plane, told) = plane(SampleBalancer::hostile(), powers);
        for path in paths(&told) {
            let text = text(&plane, &told, &path);
            for bad in ["<script>", "alert('x')", "\"onload", "&amp; "] {
                assert!(!text.contains(bad), "{path}: {bad}\n{text}");
            }
            assert!(
                text.contains("&lt;script&gt;alert(&#x27;x&#x27;)&lt;&#x2f;script&gt;"),
                "{path}\n{text}"
            );
            // The text is unchanged: `&amp;` is not decoded twice.
            assert!(text.contains("&amp;amp;"), "{path}");
        }
        let suppose = format!("{}/what-if", urls::group_url(XSS));
        let caller = Caller::unix(0);
        let eye = PageContext::new(&plane, &*told, &caller);
        let (ask, page) = what_if::read_inputs(&eye, XSS, &parse_fields("rate=%3Cscript%3E")).unwrap();
        let page = what_if::what_if_page(&eye, &ask, page, Err(XSS.into()), &suppose);
        let text = render::render_text("suppose.html", &page).unwrap();
        assert!(!text.contains("<script>") && text.contains("&lt;script&gt;"), "{text}");
    }
}

#[test]
fn the_table_has_the_columns_that_there_are() {
    let mut told = SampleBalancer::new();
    told.status.groups[0].members[0].load = Some(LoadExplanation { value: 0.5, age_seconds: 1.0 });
    let (plane, told) = plane(told, EndpointCapability::Query);
    let text = text(&plane, &told, "/dashboard");
    let table = text.split("<table role=\"table\" class=\"members\">").nth(1).unwrap();
    let heads = table.split("</thead>").next().unwrap().split("<th ").skip(1);
    let heads: Vec<&str> = heads.filter_map(|head| head.split('>').nth(1)?.strip_suffix("</th")).collect();
    assert_eq!(heads, crate::member_table::COLUMNS);
}

/// A member that reports its capacity in responses has reported, too.
#[test]
fn a_report_is_as_old_as_the_last_word_of_any_kind() {
    let mut member = SampleBalancer::new().status.groups[0].members[0].clone();
    let age = |member: &MemberStatus| crate::member_table::MemberFigures::of(member, None, 0).report_age;
    (member.load, member.said_age_seconds) = (None, None);
    assert_eq!(age(&member), None);
    member.said_age_seconds = Some(3.0);
    assert_eq!(age(&member), Some(3.0));
    for (measured, age_now) in [(1.0, 1.0), (9.0, 3.0)] {
        member.load = Some(LoadExplanation { value: 0.5, age_seconds: measured });
        assert_eq!(age(&member), Some(age_now));
    }
}

#[test]
fn the_first_screen_says_what_is() {
    let (plane, told) = plane(SampleBalancer::new(), EndpointCapability::Query);
    let text = text(&plane, &told, "/dashboard");
    for said in [
        "</a>: 2 of 3 members serve (1 down), 1 sheds sessions, p99 40 ms, 41 % below the load line</h2>",
        "aria-label=\"59 % of the 100 requests a second that it is predicted to carry; gets nothing new from \
         88 %\"",
        "<span aria-hidden=\"true\">✘</span> down</span>",
        "▲ 25 % to go; 4&#x2f;min (40)",
        "its load of 0.9 is too much; 25 % of its sessions are to go",
        "<span class=\"faint\">noise</span> 0.0123",
        "The loss of one member would put it over the load line.",
        "<caption class=\"hidden\">Members of web",
        "Offered and completed, requests a second",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    assert_eq!(text.matches("<figure").count(), 4);
    assert_eq!(text.matches("<details").count(), 4, "each chart has its numbers");
    assert!(!text.contains("class=\"banner\""), "nothing is amiss");
}

#[test]
fn refusals_and_slow_members_stand_out() {
    let mut told = SampleBalancer::new();
    let group = &mut told.status.groups[0];
    (group.shedding_seconds, group.shedding_share) = (Some(3.0), Some(0.124));
    group.shedding_reason = Some("shed".into());
    group.members[0].slow_seconds = Some(12.0);
    let (plane, told) = plane(told, EndpointCapability::Query);
    let text = text(&plane, &told, "/dashboard");
    let main = text.split_once("<main").map_or("", |(_, main)| main);
    let banner = "<p class=\"banner\">✘ Requests are refused for want of room: web 12 % (shed)</p>";
    let (Some(banner), Some(group)) = (main.find(banner), main.find("<h2 class=\"verdict\"")) else {
        panic!("{main}")
    };
    assert!(banner < group, "it comes first");
    for said in
        ["<span aria-hidden=\"true\">▲</span> slow</span>", "ten times slower than its group for 12 s; "]
    {
        assert!(main.contains(said), "{said}\n{main}");
    }
}

#[test]
fn a_load_line_that_is_a_range_has_no_percentage() {
    let mut told = SampleBalancer::new();
    let group = &mut told.status.groups[0];
    if let Some(line) = &mut group.load_line {
        (line.capacity, line.capacity_low, line.capacity_high) = (None, Some(84.6), Some(512.0));
        (line.headroom, line.verdict, line.predicted) = (None, "range".into(), Vec::new());
        let change = &mut line.what_if[0];
        (change.capacity, change.headroom, change.over, change.p99) = (None, None, None, None);
        let change = &mut line.what_if[1];
        (change.capacity, change.headroom, change.over, change.p99) = (None, None, Some(false), None);
    }
    let path = urls::group_url(&group.name);
    let (plane, told) = plane(told, EndpointCapability::Query);
    let text = text(&plane, &told, &path);
    for said in ["load line between 85 and 512 a second", "somewhere from 85 to 512", "unknown"] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    for wrong in ["% below the load line", "over the load line"] {
        assert!(!text.contains(wrong), "{wrong}\n{text}");
    }
}

#[test]
fn an_action_says_first_what_will_happen() {
    let (plane, told) = plane(SampleBalancer::new(), EndpointCapability::Command);
    let drain =
        text(&plane, &told, &urls::action_url("drain", &[("group", "web"), ("member", "10.0.0.1:80")]));
    for said in [
        "<h1>Drain 10.0.0.1:80?</h1>",
        "2 requests are under way there.",
        "63 clients are bound to it, 2 of them by leases.",
        "It had 48 % of the requests recently: the other one will carry 94 % more.",
        "‼ They are predicted to carry 100 requests a second, and 118 come: 18 % over the load line.",
        "<code>plimsoll drain 10.0.0.1:80 --group web</code>",
        "name=\"seal\"",
    ] {
        assert!(drain.contains(said), "{said}\n{drain}");
    }
    for wrong in [
        "do=drain&group=web",
        "do=x",
        "do=drain&group=web&member=nobody:1",
        "do=drain&group=x&member=a",
        "do=enable-listener&listener=x",
        // The described and the executed action would differ.
        "do=drain&group=web&member=10.0.0.1:80&listener=127.0.0.1:8080",
        "do=disable-listener&listener=127.0.0.1:8080&member=old-canary",
        "do=disable-balancing&group=web&value=random",
    ] {
        assert!(page(&plane, &told, &format!("/dashboard/act?{wrong}")).is_err(), "{wrong}");
    }
    // A member that is down has no load for the others to take over.
    let down =
        text(&plane, &told, &urls::action_url("drain", &[("group", "web"), ("member", "10.0.0.3:80")]));
    assert!(down.contains("the others carry no more than they do"), "{down}");
}

#[test]
fn where_nothing_can_be_done_it_is_said_how() {
    let (plane, told) = plane(SampleBalancer::new(), EndpointCapability::Query);
    for path in paths(&told) {
        let text = text(&plane, &told, &path);
        assert!(!text.contains("<form method=\"post\""), "{path}");
        if path.contains("/act?") || path.contains("/members/") || path.ends_with("/web") {
            assert!(text.contains("This listener only shows. To act:"), "{path}\n{text}");
        }
    }
    // There are no grants.
    let (plane, told) = self::plane(SampleBalancer::new(), EndpointCapability::Command);
    let rules = Arc::new(ActiveRules::fixed(AccessRules::default()));
    let plane = plane.with_authenticator(EndpointAuthenticator { rules, tokens: None, tickets: None });
    let caller = Caller::spiffe("spiffe://example.org/view/a");
    let eye = PageContext::new(&plane, &*told, &caller);
    assert!(eye.status.groups.is_empty() && eye.events().is_empty());
    assert!(pages::group_page(&eye, "web", "/dashboard/groups/web").is_none());
}

#[test]
fn answers_tell_browsers_what_to_keep_to() {
    let answer = render::render_page(
        StatusCode::NOT_FOUND,
        "message.html",
        &MessagePage { base: PageFrame::default(), title: "x".into(), says: "y".into() },
    );
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    let of = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    let policy = of("content-security-policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!((of("x-frame-options"), of("x-content-type-options")), ("DENY".into(), "nosniff".into()));
    for name in ["style.css", "dashboard.js", "logo.svg"] {
        assert!(render::asset(name).is_some(), "{name}");
    }
    assert!(render::asset("../Cargo.toml").is_none() && render::asset("").is_none());
}

#[test]
fn the_page_of_the_process_says_who_else_balances() {
    let mut lone = SampleBalancer::new();
    lone.status.fleet = None;
    let (lone_plane, lone) = plane(lone, EndpointCapability::Command);
    assert!(!text(&lone_plane, &lone, "/dashboard/process").contains("id=\"fleet\""));
    let mut told = SampleBalancer::new();
    let one = |state: &str| BalancerStatus {
        name: "lb2".into(),
        address: "10.0.0.2:7946".into(),
        state: state.into(),
        age_seconds: 0.1,
        reports: 1,
        loss: if state == "up" { 0.0 } else { 0.25 },
        groups: 1,
    };
    told.status.fleet = Some(FleetStatus {
        name: "lb1".into(),
        address: "10.0.0.1:7946".into(),
        balancers: vec![one("up"), one("lost")],
        ..FleetStatus::default()
    });
    let (plane, told) = plane(told, EndpointCapability::Command);
    let page = text(&plane, &told, "/dashboard/process");
    assert!(page.contains("lb1 at 10.0.0.1:7946; 1 of 2 other balancers alive"), "{page}");
    let fleet = page.split("id=\"fleet\"").nth(1).unwrap().split("</section>").next().unwrap();
    let rows: Vec<&str> = fleet.split("<tr data-key").skip(1).collect();
    assert_eq!(rows.len(), 3, "{fleet}");
    for (row, said) in
        rows.iter().zip([&["lb1", "this one"][..], &["lb2", "up", "0.1 s ago"], &["lost", "25.0 %"]])
    {
        assert!(said.iter().all(|text| row.contains(text)), "{said:?}: {row}");
    }
}

#[test]
fn pages_look_as_they_did() {
    let (plane, told) = plane(SampleBalancer::new(), EndpointCapability::Command);
    // Without the parts that depend on the time of day and on the key of the process.
    let drain =
        text(&plane, &told, &urls::action_url("drain", &[("group", "web"), ("member", "10.0.0.1:80")]));
    let main: Vec<&str> = sse::main_part(&drain)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.contains("name=\"at\"") && !line.contains("name=\"seal\""))
        .collect();
    insta::assert_snapshot!("drain", main.join("\n"));
    let home = text(&plane, &told, "/dashboard");
    let main = sse::main_part(&home);
    let rows = main.find("<tbody").zip(main.find("</tbody>"));
    let (begin, end) = rows.unwrap();
    let rows: Vec<&str> = main[begin..end].lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    insta::assert_snapshot!("members", rows.join("\n"));
}
