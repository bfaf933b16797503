//! The PROXY protocol with HAProxy in front and with HAProxy and nginx behind. Clients come from an address
//! that no proxy has, so that it can only have been passed on.

use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::stage::{Answer, Balancer, Haproxy, Member, Nginx, PATIENCE, Wire, listening, web};

const CLIENT: [u8; 4] = [127, 0, 0, 77];

/// Opens a connection from [`CLIENT`].
fn connect(address: SocketAddr) -> Wire {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((CLIENT, 0)).into()).unwrap();
    socket.connect_timeout(&address.into(), PATIENCE).unwrap();
    Wire::over(TcpStream::from(socket))
}

/// Returns an answer, and the address and port that asked for it.
#[track_caller]
fn ask(address: SocketAddr) -> (Answer, String) {
    let mut client = connect(address);
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    (client.answer().unwrap(), client.local().to_string())
}

/// Starts an HAProxy that forwards everything to a balancer.
fn in_front(mode: &str, version: &str, balancer: &Balancer) -> Haproxy {
    Haproxy::start(|address| {
        format!(
            "listen front\n  mode {mode}\n  bind {address}\n  server balancer {} {version}\n",
            balancer.address()
        )
    })
}

/// Starts an nginx that answers with the client's address of the PROXY protocol, and accepts only connections
/// that begin with it.
fn teller() -> Nginx {
    Nginx::start(|address| {
        format!(
            "http {{ access_log off; client_body_temp_path temp; proxy_temp_path temp;\n\
             server {{ listen {address} proxy_protocol;\n\
             return 200 $proxy_protocol_addr:$proxy_protocol_port; }} }}"
        )
    })
}

#[test]
fn haproxy_in_front_says_who_the_client_is() {
    let member = Member::start(&["--echo", "http"]);
    let balancer = Balancer::start(&listening("accept_proxy = true", &[member.address], ""));
    for version in ["send-proxy", "send-proxy-v2"] {
        for mode in ["http", "tcp"] {
            let haproxy = in_front(mode, version, &balancer);
            for _ in 0..3 {
                let (answer, _) = ask(haproxy.address);
                let request = answer.text();
                assert!(
                    request.contains("\r\nX-Forwarded-For: 127.0.0.77\r\n"),
                    "{version}, {mode}: {request}"
                );
            }
        }
    }
}

#[test]
fn what_haproxy_says_is_passed_on_through_a_tcp_listener() {
    let nginx = teller();
    for sent in ["v1", "v2"] {
        let text = listening(
            "protocol = \"tcp\"\naccept_proxy = true",
            &[nginx.address],
            &format!("send_proxy = \"{sent}\""),
        );
        let balancer = Balancer::start(&text);
        for version in ["send-proxy", "send-proxy-v2"] {
            let haproxy = in_front("tcp", version, &balancer);
            let (answer, client) = ask(haproxy.address);
            assert_eq!(answer.text(), client, "{version} in, {sent} out");
        }
    }
}

#[test]
fn nginx_behind_learns_who_the_client_is() {
    let nginx = teller();
    for version in ["v1", "v2"] {
        for protocol in ["http", "tcp"] {
            let text = listening(
                &format!("protocol = \"{protocol}\""),
                &[nginx.address],
                &format!("send_proxy = \"{version}\""),
            );
            let balancer = Balancer::start(&text);
            for _ in 0..3 {
                let (answer, client) = ask(balancer.address());
                assert_eq!(answer.text(), client, "{protocol}, {version}");
            }
        }
    }
}

#[test]
fn haproxy_behind_learns_who_the_client_is() {
    let haproxy = Haproxy::start(|address| {
        format!(
            "frontend behind\n  mode http\n  bind {address} accept-proxy\n\
             \x20 http-request return status 200 content-type text/plain lf-string %[src]:%[src_port]\n"
        )
    });
    for version in ["v1", "v2"] {
        for protocol in ["http", "tcp"] {
            let text = listening(
                &format!("protocol = \"{protocol}\""),
                &[haproxy.address],
                &format!("send_proxy = \"{version}\""),
            );
            let balancer = Balancer::start(&text);
            for _ in 0..3 {
                let (answer, client) = ask(balancer.address());
                assert_eq!(answer.text(), client, "{protocol}, {version}");
            }
        }
    }
}

#[test]
fn requests_of_one_client_are_not_sent_as_another_ones() {
    // A connection to a member that began with one client's address must not carry another's requests.
    let nginx = teller();
    let balancer = Balancer::start(&web(&[nginx.address], "send_proxy = \"v2\""));
    let mut clients: Vec<Wire> = (0..5).map(|_| connect(balancer.address())).collect();
    for _ in 0..4 {
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(client.answer().unwrap().text(), client.local().to_string());
        }
    }
}

#[test]
fn who_does_not_say_it_is_not_let_in() {
    let member = Member::start(&[]);
    for protocol in ["http", "tcp"] {
        let listener = format!("protocol = \"{protocol}\"\naccept_proxy = true");
        let balancer = Balancer::start(&listening(&listener, &[member.address], ""));
        for wrong in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "PROXY TCP4 127.0.0.77 127.0.0.1 99999 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "PROXY TCP4 not.an.address 127.0.0.1 1 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
        ] {
            let mut client = Wire::connect(balancer.address());
            client.send(wrong);
            client.closed();
        }
        // Clients that are too slow are refused, at a balancer with a short timeout.
        let hasty = format!("{listener}\n[listener.timeouts]\nhead = \"500ms\"");
        let hasty = Balancer::start(&listening(&hasty, &[member.address], ""));
        let mut client = Wire::connect(hasty.address());
        client.send("PROXY TC");
        client.closed();
        let idle = hasty.member(member.address);
        assert_eq!((&idle["requests"], &idle["connects"]), (&0.into(), &0.into()), "{protocol}: {idle}");
        let member = balancer.member(member.address);
        assert_eq!(
            (&member["requests"], &member["connects"]),
            (&0.into(), &0.into()),
            "{protocol}: {member}"
        );
        // HAProxy's own health checks come without an address and are let in.
        let mut client = Wire::connect(balancer.address());
        client.send("PROXY UNKNOWN\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200);
    }
}
