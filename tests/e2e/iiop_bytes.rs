//! The iiop listener byte by byte: its answers to messages captured from real ORBs
//! (`crates/wire/tests/giop`), and to invalid GIOP.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::stage::{Balancer, Orb, OrbGroup, OrbMember, PATIENCE, free_port, nobody, until};

fn captured(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/giop");
    std::fs::read(folder.join(name)).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads a whole message.
#[track_caller]
fn message(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = vec![0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], *b"GIOP");
    let size = u32_at(&head, 8);
    let mut body = vec![0; size as usize];
    stream.read_exact(&mut body).unwrap();
    [head, body].concat()
}

/// Returns a number in a message, in its byte order.
fn u32_at(message: &[u8], at: usize) -> u32 {
    let bytes = message[at..at + 4].try_into().unwrap();
    if message[6] & 1 == 1 { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
}

/// Returns the first profile of a reference in hexadecimal, of an ORB of either byte order.
fn profile(ior: &str) -> Vec<u8> {
    let digits = &ior.as_bytes()["IOR:".len()..];
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    let number = |at: usize| {
        let number = bytes[at..at + 4].try_into().unwrap();
        (if bytes[0] == 1 { u32::from_le_bytes(number) } else { u32::from_be_bytes(number) }) as usize
    };
    // The type, the number of profiles, a tag, then the profile's length.
    let length_at = (8 + number(4)).next_multiple_of(4) + 8;
    bytes[length_at + 4..length_at + 4 + number(length_at)].to_vec()
}

#[test]
fn a_forward_names_one_member_and_is_never_for_ever() {
    let members = [OrbMember::start(Orb::Omni, "m0", &[])];
    let wanted = profile(&members[0].ior);
    for (key, names) in [
        (
            "Latency",
            ["omniorb-1.0-request-who.bin", "omniorb-1.1-request-who.bin", "omniorb-1.2-request-who.bin"],
        ),
        (
            "tests/Tests/Latency",
            ["jacorb-1.0-request-who.bin", "jacorb-1.1-request-who.bin", "jacorb-1.2-request-who.bin"],
        ),
    ] {
        let group = OrbGroup::keyed("per_session", &members, key);
        for (minor, name) in names.iter().enumerate() {
            let request = captured(name);
            let mut stream = connect(group.address);
            // In single bytes: message boundaries are not packet boundaries.
            for byte in &request {
                stream.write_all(std::slice::from_ref(byte)).unwrap();
            }
            let reply = message(&mut stream);
            assert_eq!((reply[4], reply[5], reply[7]), (1, minor as u8, 1), "{name}: a reply of its version");
            // Without service contexts, which come before in the old versions.
            let (id, status) = if minor < 2 { (16, 20) } else { (12, 16) };
            let asked = if minor == 2 { u32_at(&request, 12) } else { id_behind_contexts(&request) };
            assert_eq!(u32_at(&reply, id), asked, "{name}");
            assert_eq!(u32_at(&reply, status), 3, "{name}: LOCATION_FORWARD, not PERM");
            let holds = |part: &[u8]| reply.windows(part.len()).filter(|window| *window == part).count();
            assert_eq!(holds(&wanted), 1, "{name}: the member's own profile, every byte of it");
            assert_eq!(holds(b"IDL:Test/Latency:1.0\0"), 1, "{name}: typed");
            // The connection remains usable.
            stream.write_all(&request).unwrap();
            assert_eq!(u32_at(&message(&mut stream), status), 3, "{name}");
        }
    }
}

/// Returns the id of a request of version 1.0 or 1.1, behind its service contexts.
fn id_behind_contexts(request: &[u8]) -> u32 {
    let mut at = 16;
    for _ in 0..u32_at(request, 12) {
        at = (at + 8 + u32_at(request, at + 4) as usize).next_multiple_of(4);
    }
    u32_at(request, at)
}

#[test]
fn the_profile_and_the_whole_reference_are_addresses_too() {
    // They carry the reference of the member that the client was bound to when it was captured; its key is
    // the same.
    let members = [OrbMember::start(Orb::Omni, "m0", &[])];
    let group = OrbGroup::keyed("per_session", &members, "Latency");
    for name in ["omniorb-1.2-request-profile-who.bin", "omniorb-1.2-request-reference-who.bin"] {
        let mut stream = connect(group.address);
        stream.write_all(&captured(name)).unwrap();
        assert_eq!(u32_at(&message(&mut stream), 16), 3, "{name}");
    }
}

#[test]
fn what_is_no_giop_ends_its_connection_and_nothing_else() {
    let members = [OrbMember::start(Orb::Omni, "m0", &[])];
    for binding in ["per_session", "per_request"] {
        let group = OrbGroup::start(binding, &members, "");
        let bad: [&[u8]; 7] = [
            b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"GIOP\x02\x00\x01\x00\x00\x00\x00\x00",
            b"GIOP\x01\x02\x01\x09\x00\x00\x00\x00",
            b"GIOP\x01\x02\x01\x00\xff\xff\xff\xff",
            // A body shorter than its request.
            b"GIOP\x01\x02\x01\x00\x04\x00\x00\x00\x01\x00\x00\x00",
            // A key longer than its message.
            b"GIOP\x01\x02\x01\x00\x10\x00\x00\x00\
              \x01\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\x7f",
            // A reply, from a client.
            b"GIOP\x01\x02\x01\x01\x0c\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ];
        for bytes in bad {
            let mut stream = connect(group.address);
            stream.write_all(bytes).unwrap();
            let mut answer = Vec::new();
            // An end, a reset or a MessageError and then an end; never a reply.
            let _ = stream.read_to_end(&mut answer).map_err(|error| {
                let reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                assert!(reset, "{error} after {bytes:02x?}");
            });
            assert!(answer.is_empty() || answer[7] == 5 || answer[7] == 6, "{answer:02x?} to {bytes:02x?}");
        }
        assert_eq!(Orb::Omni.calls(&group.ior, "who")[0].who(), "m0");
    }
}

#[test]
fn clients_that_do_not_wait_harm_no_others() {
    // Four clients with one connection to the member; its ORB closes a connection on which an old request is
    // cancelled.
    let members = [OrbMember::start(Orb::Omni, "m0", &["--sleep", "400000"])];
    let group = OrbGroup::start("per_request", &members, "iiop.key = \"Latency\"\niiop.connections = 1");
    for name in ["omniorb-1.0-request-who.bin", "omniorb-1.1-request-who.bin", "omniorb-1.2-request-who.bin"]
    {
        let request = captured(name);
        let connected = || -> Vec<TcpStream> { (0..4).map(|_| connect(group.address)).collect() };
        let (mut goes, mut stays) = (connected(), connected());
        let requests = || group.member(members[0].address)["requests"].as_u64().unwrap();
        let connections = || group.status()["listeners"][0]["connections"].as_u64().unwrap();
        until("all are connected", || connections() == 8);
        let before = requests();
        goes.iter_mut().for_each(|stream| stream.write_all(&request).unwrap());
        until("they are at the member", || requests() >= before + 4);
        drop(goes);
        until("they have gone", || connections() == 4);
        stays.iter_mut().for_each(|stream| stream.write_all(&request).unwrap());
        for mut stream in stays {
            let reply = message(&mut stream);
            // omniORB puts no service contexts before it.
            let status = if reply[5] < 2 { 20 } else { 16 };
            assert_eq!(u32_at(&reply, status), 0, "{name}: {}", String::from_utf8_lossy(&reply));
        }
        until("nobody is connected", || connections() == 0);
    }
}

#[test]
fn clients_that_come_at_once_share_one_connection() {
    let member = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let balancer = Balancer::start(&format!(
        "threads = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"iiop\"\nbinding = \
         \"per_request\"\n\
         group = \"web\"\n[[group]]\nname = \"web\"\niiop = {{ key = \"Latency\", connections = 1 }}\n\
         members = [{{ address = \"{}\", key = \"Latency\" }}]\n",
        member.local_addr().unwrap()
    ));
    let mut clients: Vec<TcpStream> = (0..16).map(|_| connect(balancer.address())).collect();
    let request = captured("omniorb-1.2-request-who.bin");
    clients.iter_mut().for_each(|client| client.write_all(&request).unwrap());
    let (mut line, _) = member.accept().unwrap();
    line.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asked: Vec<u32> = clients.iter().map(|_| u32_at(&message(&mut line), 12)).collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), clients.len(), "each has a number of its own");
    drop(line);
    for mut client in clients {
        let reply = message(&mut client);
        assert!(String::from_utf8_lossy(&reply).contains("COMM_FAILURE"), "{reply:?}");
    }
}

#[test]
fn one_failed_connection_is_one_failure_for_all_who_wait_for_it() {
    let (_held, gone) = nobody();
    let members = [OrbMember::start(Orb::Omni, "m0", &[])];
    let balancer = Balancer::start(&format!(
        "threads = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"iiop\"\nbinding = \
         \"per_request\"\n\
         group = \"web\"\n[[group]]\nname = \"web\"\nstrategy = \"round_robin\"\nslow_start = \"0s\"\n\
         iiop = {{ key = \"Latency\", connections = 1 }}\n\
         members = [{{ address = \"{gone}\", key = \"Latency\" }}, \
         {{ address = \"{}\", key = \"Latency\" }}]\n",
        members[0].address
    ));
    let mut clients: Vec<TcpStream> = (0..30).map(|_| connect(balancer.address())).collect();
    let request = captured("omniorb-1.2-request-who.bin");
    // The process stands still meanwhile, so that it finds all clients at once.
    balancer.process.signal(Signal::STOP);
    clients.iter_mut().for_each(|client| client.write_all(&request).unwrap());
    balancer.process.signal(Signal::CONT);
    for mut client in clients {
        let reply = message(&mut client);
        assert_eq!(u32_at(&reply, 16), 0, "{}", String::from_utf8_lossy(&reply));
    }
    // Half of them were to go there. The balancer need not handle all of them at the same moment.
    let failures = balancer.member(gone)["failures"].as_u64().unwrap();
    assert!((1..10).contains(&failures), "{failures}");
}

/// Returns a oneway of GIOP 1.0, big-endian, with 60,000 bytes.
fn oneway() -> Vec<u8> {
    let mut body = vec![0; 8];
    // No answer wanted, and three bytes of padding.
    body.extend([0; 4]);
    body.extend(b"\0\0\0\x07Latency\0");
    body.extend(b"\0\0\0\x05note\0\0\0\0");
    body.extend([0; 4]);
    body.resize(60_000, b'x');
    [&b"GIOP\x01\0\0\0"[..], &60_000_u32.to_be_bytes(), &body].concat()
}

#[test]
fn a_member_that_does_not_read_holds_nobody_for_ever() {
    // The member accepts connections and does nothing else.
    let member = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let balancer = Balancer::start(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"iiop\"\nbinding = \"per_request\"\n\
         group = \"web\"\n[[group]]\nname = \"web\"\ntimeouts.idle = \"4s\"\niiop = {{ key = \"Latency\" }}\n\
         members = [{{ address = \"{}\", key = \"Latency\" }}]\n",
        member.local_addr().unwrap()
    ));
    let mut client = connect(balancer.address());
    client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    // As much as fits into the kernel's buffers, and no more; filling them takes less than `idle`.
    let full = (0..1000).any(|_| client.write_all(&oneway()).is_err());
    assert!(full, "60 MB went somewhere");
    drop(client);
    until("the client is let go", || balancer.status()["listeners"][0]["connections"] == 0);
}

#[test]
fn half_a_message_is_not_waited_for_for_ever() {
    let balancer = Balancer::start(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"iiop\"\ngroup = \"web\"\n\
         timeouts.body = \"200ms\"\n[[group]]\nname = \"web\"\nmembers = [\"127.0.0.1:1\"]\n",
    );
    for begun in [&b"GIOP"[..], b"GIOP\x01\x02\x01\0\0\x10\0\0half"] {
        let mut stream = connect(balancer.address());
        stream.write_all(begun).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    }
}

#[test]
fn who_reads_no_replies_is_given_up() {
    let members = [OrbMember::start(Orb::Omni, "m0", &[])];
    let balancer = Balancer::start(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"iiop\"\nbinding = \"per_request\"\n\
         group = \"web\"\ntimeouts.body = \"500ms\"\n[[group]]\nname = \"web\"\n\
         members = [{{ address = \"{}\", key = \"Latency\" }}]\niiop = \
         {{ key = \"Latency\", max_message = 65536 }}\n",
        members[0].address
    ));
    let mut request = captured("omniorb-1.2-request-blob.bin");
    let rest = captured("omniorb-1.2-fragment-request-blob-1.bin");
    let second = request.len();
    request.extend(rest);
    let mut stream = connect(balancer.address());
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // Far more than fits into the kernel's buffers: at most 400 MB.
    let ended = (0..50_000_u32).find_map(|number| {
        for at in [12, second + 12] {
            request[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        stream.write_all(&request).err()
    });
    let ended = ended.expect("an end").kind();
    assert!(matches!(ended, std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe), "{ended}");
    let other = format!("corbaloc:iiop:1.2@{}/Latency", balancer.address());
    assert_eq!(Orb::Omni.calls(&other, "who")[0].who(), "m0");
}
