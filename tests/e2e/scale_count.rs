//! A scaler that only sets the number of members, with an API server that keeps one number, as the real one
//! does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::stage::{Balancer, Folder, Member, Script, members_list, until};

/// A server that keeps `spec.replicas`.
struct Api {
    server: Script,
    replicas: Arc<AtomicU64>,
    asked: Arc<AtomicUsize>,
}

impl Api {
    fn start(replicas: u64) -> Self {
        let (replicas, asked) = (Arc::new(AtomicU64::new(replicas)), Arc::<AtomicUsize>::default());
        let (kept, count) = (Arc::clone(&replicas), Arc::clone(&asked));
        let server = Script::start(move |wire| {
            let head = wire.head()?.unwrap_or_default();
            let body = wire.body(&head, false)?;
            if head.starts_with("PATCH ") {
                let wanted: Value = serde_json::from_slice(&body).unwrap();
                kept.store(wanted["spec"]["replicas"].as_u64().unwrap(), SeqCst);
            }
            let body = json!({"kind": "Scale", "spec": {"replicas": kept.load(SeqCst)}}).to_string();
            count.fetch_add(1, SeqCst);
            wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
        });
        Self { server, replicas, asked }
    }

    fn replicas(&self) -> u64 {
        self.replicas.load(SeqCst)
    }

    fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

fn text(api: &Api, folder: &Folder, min: u32) -> String {
    folder.write("token", "t0ken");
    folder.write("namespace", "shop");
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nslow_start = \
         \"0s\"\n\
         health = {{ tcp = true, interval = \"100ms\", fall = 1 }}\n[[group.discover]]\nfile = \"{}\"\n\
         [group.scaler]\nmin = {min}\nmax = 9\ntarget = {{ headroom = 0.3 }}\ninterval = \
         \"100ms\"\nstart_time = \"1s\"\n\
         [group.scaler.kubernetes]\nname = \"web\"\ntls = false\nserver = \"{}\"\naccount = \"{}\"\n",
        folder.join("members").display(),
        api.server.address,
        folder.path().display()
    )
}

#[test]
fn where_nobody_is_found_nobody_is_taken_away_and_more_are_never_fewer() {
    let mut members = Member::several(6, &[]);
    let (api, folder) = (Api::start(6), Folder::new());
    // The source fails: the members are unknown; only the wanted number, six, is known.
    let balancer = Balancer::start(&text(&api, &folder, 4));
    until("it was asked thrice", || api.asked() >= 3);
    assert_eq!(api.replicas(), 6);
    let addresses: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    folder.write("members", format!("members = {}\n", members_list(&addresses)));
    let usable = |balancer: &Balancer| {
        let group = balancer.group("web");
        let all = group["members"].as_array().unwrap().clone();
        all.iter().filter(|one| one["state"] == "up").count()
    };
    until("all are found", || usable(&balancer) == 6);
    // Three of six cannot be used; the scaler wants one more than there are: seven, and not four.
    members.truncate(3);
    until("one more is asked for", || api.replicas() != 6);
    assert_eq!(api.replicas(), 7);
}
