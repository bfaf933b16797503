//! Listeners that stay the same after a reload, and in the engine that takes over from another.

use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_proxy::{Engine, GroupSettings, InheritedState, Protocol, Settings};
use tokio::net::TcpStream;

use crate::rig::*;

/// Returns settings with several listeners whose ports the system chooses, each with a `backlog` by which it
/// is identified.
fn several(count: u32, members: &[SocketAddr]) -> Settings {
    let one = |number: u32| {
        let mut one = listener(Protocol::Tcp);
        (one.backlog, one.max_flows) = (100 + number, number as usize);
        one
    };
    let mut settings = settings(one(0), group(members));
    settings.listeners = (0..count).map(one).collect();
    settings
}

#[tokio::test]
async fn listeners_whose_ports_the_system_chooses_are_told_apart_by_their_order() {
    within(async {
        let member = Echo::start().await.address;
        let (engine, _) = start_with(several(3, &[member]));
        let before = engine.addresses();
        // Nothing changes: neither a backlog, nor an address.
        assert_eq!(engine.reload(several(3, &[member]), Vec::new()).unwrap(), Vec::<String>::new());
        assert_eq!(engine.addresses(), before);
        let changes = engine.reload(several(2, &[member]), Vec::new()).unwrap();
        assert_eq!(changes, [format!("- listener tcp {}", home())]);
        assert_eq!(engine.addresses(), before[..2]);
        let changes = engine.reload(several(3, &[member]), Vec::new()).unwrap();
        assert_eq!(changes, [format!("+ listener tcp {} -> g", home())]);
        assert_eq!(engine.addresses()[..2], before[..2]);
        // Each of them accepts.
        for address in engine.addresses() {
            TcpStream::connect(address).await.unwrap();
        }
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_reload_says_what_it_changes_by_the_names_of_the_configuration() {
    within(async {
        let (one, two) = (Echo::start().await.address, Echo::start().await.address);
        let (engine, _) = start_with(several(1, &[one]));
        let said = |change: &dyn Fn(&mut Settings)| {
            let mut settings = several(1, &[one]);
            change(&mut settings);
            let said = engine.reload(settings, Vec::new()).unwrap();
            engine.reload(several(1, &[one]), Vec::new()).unwrap();
            said
        };
        let group = |settings: &mut Settings, change: &dyn Fn(&mut GroupSettings)| {
            change(Arc::make_mut(&mut settings.groups[0]));
        };
        // A member alone is no setting of its group, whatever its address.
        let came = said(&|settings| {
            *settings = several(1, &[one, two]);
            group(settings, &|group| {
                group.hosts.insert(two.to_string().into(), "a".into());
                group.public.insert(two.to_string().into(), "http://two".into());
            });
        });
        assert_eq!(came, [format!("+ group g: member {two}")]);
        let moved = said(&|settings| {
            group(settings, &|group| drop(group.hosts.insert(one.to_string().into(), "a".into())));
        });
        assert_eq!(moved, [format!("~ group g: member {one}")]);
        let both = said(&|settings| {
            group(settings, &|group| {
                (group.queue, group.pool) = (group.queue + 1, group.pool + 1);
                group.spec.slow_start += SECOND;
            });
            settings.listeners[0].half_close = true;
        });
        let listener = format!("~ listener tcp {}: half_close", home());
        assert_eq!(both, [&*listener, "~ group g: slow_start, queue, max_idle_connections"]);
        let limit = said(&|settings| group(settings, &|group| group.spec.members[0].limit = 7));
        assert_eq!(limit, ["~ group g: max_connections none -> 7"]);
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_engine_takes_over_from_another_and_nobody_who_waits_is_lost() {
    within(async {
        let member = Echo::start().await.address;
        let settings = |threads: usize| {
            let mut settings = several(2, &[member]);
            settings.threads = threads;
            settings
        };
        let (first, address) = start_with(settings(3));
        let mut old = TcpStream::connect(address).await.unwrap();
        echoes(&mut old, "hello").await;
        first.close_listener(&first.addresses()[1].to_string()).unwrap();
        let counted = status(&first).members[0].connects;
        let estate =
            InheritedState { clock_start: Some(first.clock_start()), sockets: first.sockets().unwrap() };
        let next = Engine::prepare(settings(1), estate).unwrap();
        assert_eq!(next.addresses(), first.addresses());
        next.resume(first.handoff_state());
        first.leave_sockets();
        // No process accepts: these wait, in any of the three queues.
        let mut waiting = Vec::new();
        for _ in 0..20 {
            waiting.push(TcpStream::connect(address).await.unwrap());
        }
        next.open().unwrap();
        for client in &mut waiting {
            echoes(client, "hello").await;
        }
        // It continues on its connection.
        echoes(&mut old, "again").await;
        // The first may not have left yet: it serves the connections that it still accepted.
        let both = |count: &dyn Fn(&Engine) -> u64, before: u64| count(&first) + count(&next) - before;
        assert_eq!(both(&|engine| status(engine).members[0].connects, counted), counted + 20);
        assert_eq!(both(&|engine| engine.status().listeners[0].accepted, 1), 21);
        assert!(next.status().listeners[1].disabled);
        // Some of the waiting clients may be the first one's, too.
        drop((old, waiting));
        assert_eq!(first.retire().await, 0);
        next.stop().await;
    })
    .await;
}

#[tokio::test]
async fn connections_are_counted_over_all_listeners() {
    within(async {
        let member = Echo::start().await.address;
        let (engine, _) = start_with(several(2, &[member]));
        assert_eq!(engine.connections(), 0);
        let mut open = Vec::new();
        for address in [engine.addresses(), engine.addresses()].concat() {
            let mut client = TcpStream::connect(address).await.unwrap();
            echoes(&mut client, "hello").await;
            open.push(client);
        }
        assert_eq!(engine.connections(), 4);
        let shown: u64 = engine.status().listeners.iter().map(|listener| listener.connections).sum();
        assert_eq!(shown, 4);
        drop(open);
        engine.stop().await;
    })
    .await;
}
