//! The rights of this user, and those of others at the balancer.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use plimsoll_brain::status::StatusReport;
use plimsoll_config::{self as config, Config, ConfigFile, FilePath};
use rustix::fs::{Access, access};

use super::diagnostic::{CheckSection, GuidePage};

/// Checks ports, folders and keys. The own ports and sockets of a running balancer (`seen`) need not be free.
pub(super) fn permissions(file: &ConfigFile, seen: Option<&StatusReport>) -> CheckSection {
    let mut part = CheckSection::new("permissions");
    let listeners = file.config.listeners.iter();
    let listeners = listeners.map(|listener| (listener.address.0, listener.protocol.transport()));
    if let Some(status) = seen {
        part.skip("ports and sockets: the balancer that runs has its own");
        // The addresses that the next reload would add.
        let own = |address: &SocketAddr| {
            status.listeners.iter().any(|listener| listener.address == address.to_string())
        };
        listen(&mut part, listeners.filter(|(address, _)| !own(address)));
    } else {
        let admin = &file.config.admin;
        let admin = [admin.listen.0, admin.reports.0, admin.load_manager.0];
        listen(&mut part, listeners.chain(admin.into_iter().flatten().map(|address| (address, "tcp"))));
        control_folder(&mut part, file);
    }
    let logs = file.config.access_log.iter().map(|log| &log.path).chain(&file.config.admin.audit);
    for FilePath(path) in logs {
        writable(&mut part, path);
    }
    keys(&mut part, &file.config);
    part
}

/// Checks that this user could listen at the addresses of the file now.
fn listen(part: &mut CheckSection, addresses: impl Iterator<Item = (SocketAddr, &'static str)>) {
    let mut free = 0;
    for (address, transport) in addresses.filter(|(address, _)| address.port() != 0) {
        let outcome = match transport {
            "udp" => UdpSocket::bind(address).map(drop),
            _ => TcpListener::bind(address).map(drop),
        };
        match outcome {
            Ok(()) => free += 1,
            Err(error) => add_bind_failure(part, address, transport, &error),
        }
    }
    if free > 0 {
        part.ok(format!(
            "{} can be listened on",
            if free == 1 { "1 address".to_owned() } else { format!("{free} addresses") }
        ));
    }
}

fn add_bind_failure(part: &mut CheckSection, address: SocketAddr, transport: &str, error: &std::io::Error) {
    let (what, hint) = match error.kind() {
        ErrorKind::AddrInUse => {
            ("somebody else listens there".to_owned(), "find it with ss -ltnup, or take another port")
        }
        ErrorKind::PermissionDenied => (
            format!("this user may not listen on port {}", address.port()),
            "AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit, or a port from 1024 on",
        ),
        ErrorKind::AddrNotAvailable => ("this host does not have that address".to_owned(), "see ip address"),
        _ => (error.to_string(), "see whether another address would do"),
    };
    part.fail(format!("{address} ({transport}): {what}"), hint, GuidePage::Permissions);
}

fn control_folder(part: &mut CheckSection, file: &ConfigFile) {
    let admin = file.admin();
    let Some(socket) = admin.control else { return };
    let folder = folder_of(&socket);
    let room = if admin.control_is_set {
        access(folder, Access::WRITE_OK).is_ok()
    } else {
        config::is_usable(&socket)
    };
    if room {
        part.ok(format!("the control socket can be made in {}", folder.display()));
        return;
    }
    let what = format!("this user cannot make the control socket in {}", folder.display());
    let hint = "set [admin] control to a folder of its own, such as RuntimeDirectory= gives a unit";
    if admin.control_is_set {
        part.fail(what, hint, GuidePage::Permissions)
    } else {
        part.warn(what, hint, GuidePage::Permissions)
    }
}

/// Returns the folder of a file, existing or not: a bare name is in the current folder.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => Path::new("/"),
    }
}

fn writable(part: &mut CheckSection, path: &Path) {
    let target = if path.exists() { path } else { folder_of(path) };
    match access(target, Access::WRITE_OK) {
        Ok(()) => part.ok(format!("{} can be written", path.display())),
        Err(error) => part.fail(
            format!("{} cannot be written: {error}", path.display()),
            "make the folder, and give it to the user of the balancer",
            GuidePage::Permissions,
        ),
    }
}

/// Finds private keys that every user of the host can read.
fn keys(part: &mut CheckSection, config: &Config) {
    let listeners = config.listeners.iter();
    let tls = listeners.clone().flat_map(|listener| &listener.tls).flat_map(|tls| &tls.certificates);
    let cookies = listeners.flat_map(|listener| &listener.affinity);
    let cookies = cookies.flat_map(|affinity| affinity.key_file.iter().chain(&affinity.old_key_file));
    let own = config.groups.iter().flat_map(|group| &group.tls).flat_map(|tls| &tls.own);
    let lottery = config.groups.iter().flat_map(|group| &group.lottery).map(|drawn| &drawn.keys);
    let control = config.admin.tls.iter().map(|tls| &tls.key);
    let all = tls.chain(own).map(|one| &one.key).chain(cookies).chain(lottery).chain(control);
    let (mut kept, mut open) = (0, 0);
    for FilePath(path) in all {
        let Ok(found) = std::fs::metadata(path) else { continue };
        if found.permissions().mode() & 0o004 == 0 {
            kept += 1;
            continue;
        }
        open += 1;
        part.warn(
            format!("everybody on this host can read the key {}", path.display()),
            format!("chmod o-r {}", path.display()),
            GuidePage::Permissions,
        );
    }
    if kept > 0 && open == 0 {
        part.ok("private keys are not for everybody to read");
    }
}

/// Lists the rights to look and to act.
pub(super) fn control_rights(file: &ConfigFile) -> CheckSection {
    let mut part = CheckSection::new("control access");
    let admin = file.admin();
    match admin.listen {
        Some(address) if !address.ip().is_loopback() => part.warn(
            format!("whoever can reach {address} sees status, metrics and events"),
            "listen on 127.0.0.1, or keep others out of that network",
            GuidePage::Access,
        ),
        Some(address) => part.ok(format!("looking: {address}, from this host only")),
        None => part.ok("looking: by the control addresses only"),
    }
    if let Some(address) = admin.reports.filter(|address| address.ip().is_unspecified()) {
        part.warn(
            format!(
                "reports are taken on every interface ({address}): whoever reaches it can say anything \
                of any load"
            ),
            "name the address in the network of the members",
            GuidePage::Access,
        );
    }
    match &admin.control {
        Some(socket) => match std::fs::metadata(socket) {
            Ok(found) if found.permissions().mode() & 0o077 != 0 => part.warn(
                format!("{} is open to other users", socket.display()),
                format!("chmod 600 {}", socket.display()),
                GuidePage::Access,
            ),
            _ => part.ok(format!("acting: {}, by its owner and root", socket.display())),
        },
        None if admin.tls.is_none() => part.warn(
            "nobody can drain, reload or stop: there is no control address",
            "set [admin] control = \"unix:/run/plimsoll.sock\"",
            GuidePage::Access,
        ),
        None => {}
    }
    if let Some((tls, jwt, keytab)) = &admin.tls {
        let ways = [
            ("certificates", tls.client_ca.is_some()),
            ("tokens", jwt.is_some()),
            ("Kerberos tickets", keytab.is_some()),
        ];
        let ways: Vec<&str> = ways.iter().filter(|(_, there)| *there).map(|(way, _)| *way).collect();
        part.ok(format!("acting over TLS: {}, by {}", tls.address, ways.join(", ")));
        if admin.audit.is_none() {
            part.warn(
                "what others do over TLS is written down nowhere",
                "set [admin] audit = \"/var/log/plimsoll/audit.log\"",
                GuidePage::Access,
            );
        }
        match file.rules() {
            Ok(_) => part.ok("the rules of who may do what can be read"),
            Err(why) => part.fail(why, "mend the file of [admin.access]", GuidePage::Access),
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_in_the_folder_where_we_are() {
        let folder = |path: &'static str| folder_of(Path::new(path));
        assert_eq!(folder("access.log"), Path::new("."));
        assert_eq!(folder("/var/log/access.log"), Path::new("/var/log"));
        assert_eq!((folder("/x"), folder("/")), (Path::new("/"), Path::new("/")));
    }
}
