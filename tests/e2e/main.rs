//! Tests end to end: the real binary between real clients and real servers.
//!
//! Parts that are not Rust come from Debian by `scripts/install-test-deps`. A missing part fails the test
//! with a message that names it. The binary is the one that `PLIMSOLL_BIN` names, or else the one cargo built
//! beside the tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod access_log;
mod acme;
mod affinity;
mod agent;
mod answers;
mod basics;
mod binding;
mod check;
mod clients;
mod connections;
mod contrib;
mod crowd;
mod discover;
mod dns;
mod ending;
mod examples;
mod faults;
mod first_hour;
mod fleet;
mod fleet_view;
mod forwarding;
mod grpc_go;
mod guide;
mod guide_walk;
mod h2spec;
mod hand_over;
mod health;
mod host;
mod hostile;
mod http2;

mod iiop;
mod iiop_bytes;
mod iiop_faults;
mod iiop_redirect;
mod iiop_relay;
mod iiop_shed;
mod iiop_side_car;
mod import;
mod in_band;
#[cfg(feature = "kerberos")]
mod kerberos;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod lab;
mod lab_application;
mod lab_lottery;
mod lab_network;
mod load;
mod load_line;
mod load_manager;
mod lookaside;
mod lottery;
mod lottery_control;
mod lottery_keys;
mod lottery_legacy;
mod lottery_life;
mod lottery_load;
mod lottery_network;
mod model;
mod model_limits;
mod model_overload;
mod monitoring;
mod one_group;
mod orca_oob;
mod overload;
mod own_reports;
mod pick;
#[path = "../ports.rs"]
mod ports;
mod proxy_protocol;
mod rate;
#[cfg(feature = "kerberos")]
#[expect(dead_code, reason = "a part of it is for other tests")]
#[path = "../realm/mod.rs"]
mod realm;
mod register;
mod reload;
mod routing;
mod scale;
mod scale_count;
mod scale_together;
mod sharing;
mod side_car;
mod side_car_away;
mod slow;
mod smuggling;
mod stage;
mod start;
mod store;
mod store_etcd;
mod store_lost;
mod store_shared;
mod streaming;
mod supervise;
mod supervise_control;
mod supervise_sockets;
mod switch;
mod tcp;
mod tls;
mod top;
mod tracing;
mod udp;
mod upgrade;
mod upgrade_kept;
mod upgrade_learnt;
mod upgrade_ways;
mod vrrp;
mod websocket;
mod xds;
