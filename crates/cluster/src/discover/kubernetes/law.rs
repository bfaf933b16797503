//! The law of what an API server says of a service: a page and events are read whole or refused, the slices
//! that are kept are bounded, and what comes of them is a bounded list of addresses, each once. The fuzz
//! target `kubernetes` tries it on invented bytes, the test below on the committed corpus and on what is
//! nearly in it.
//!
//! The first line is a page of slices, the lines behind it are events of a watch.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::api::{Events, Failed, read_page};
use super::slices::{Slice, members};
use super::watched::Known;
use super::{Family, KubernetesApi, KubernetesSource, ServicePort};
use crate::discover::{MOST, Told};

/// Panics if the law does not hold. Returns whether there are members in the end.
pub(crate) fn check(input: &[u8]) -> bool {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (page, events) = input.split_at(line);
    let mut slices = BTreeMap::new();
    let Ok((version, _)) = read_page(page, &mut slices) else { return false };
    let mut known = Known::new(version, slices);
    known.news = false;
    let mut events = Events::new(events.to_vec().into());
    while let Poll::Ready(Ok(Some(event))) = pin!(events.next()).poll(&mut Context::from_waker(Waker::noop()))
    {
        let before = known.slices.clone();
        match known.take(event) {
            Ok(()) => {}
            Err(Failed::Gone | Failed::Unclear(_)) => break,
            Err(failed) => panic!("{failed}"),
        }
        assert!(known.news || known.slices == before, "a change is told");
    }
    let mut any = false;
    for family in [Family::Any, Family::V4, Family::V6] {
        for port in [None, Some(ServicePort::Number(80)), Some(ServicePort::Name("http".into()))] {
            any |= obeys(&source(family, port), &known.slices);
        }
    }
    any
}

fn source(family: Family, port: Option<ServicePort>) -> KubernetesSource {
    let api = KubernetesApi::Account { server: None, tls: false, folder: "/nonexistent".into() };
    KubernetesSource {
        service: "web".into(),
        namespace: None,
        port,
        family,
        api,
        timeout: Duration::from_secs(1),
    }
}

fn obeys(source: &KubernetesSource, slices: &BTreeMap<String, Slice>) -> bool {
    let told = match members(source, slices) {
        Ok(told) => told,
        Err(why) => {
            assert!(!why.is_empty());
            return false;
        }
    };
    assert_eq!(members(source, slices).as_ref(), Ok(&told), "it is a function");
    let Told { members: Some(all), .. } = told else { panic!("the slices say who is there") };
    assert!(all.len() <= MOST);
    assert!(all.is_sorted_by(|one, other| one.address < other.address), "{all:?}");
    let fits = |v4: bool| match source.family {
        Family::Any => true,
        Family::V4 => v4,
        Family::V6 => !v4,
    };
    assert!(all.iter().all(|one| one.address.port() != 0 && *one.name == one.address.to_string()), "{all:?}");
    assert!(all.iter().all(|one| fits(one.address.is_ipv4())), "{all:?}");
    assert!(all.is_empty() || all.iter().any(|one| !one.leaving), "nobody is left: {all:?}");
    !all.is_empty()
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("kubernetes", b"\n\"{}[],:0123456789-", 3_000, check);
}
