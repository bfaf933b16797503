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
pub(super) fn check_permissions(file: &ConfigFile, live_status: Option<&StatusReport>) -> CheckSection {
    let mut section = CheckSection::new("permissions");
    let listeners = file.config.listeners.iter();
    let listeners = listeners.map(|listener| (listener.address.0, listener.protocol.transport()));
    if let Some(status) = live_status {
        section.skip("ports and sockets: the balancer that runs has its own");
        // The addresses that the next reload would add.
        let is_bound = |address: &SocketAddr| {
            status.listeners.iter().any(|listener| listener.address == address.to_string())
        };
        check_listen(&mut section, listeners.filter(|(address, _)| !is_bound(address)));
    } else {
        let admin = &file.config.admin;
        let admin = [admin.listen.0, admin.reports.0, admin.load_manager.0];
        check_listen(
            &mut section,
            listeners.chain(admin.into_iter().flatten().map(|address| (address, "tcp"))),
        );
        check_control_folder(&mut section, file);
    }
    let logs = file.config.access_log.iter().map(|log| &log.path).chain(&file.config.admin.audit);
    for FilePath(path) in logs {
        check_writable(&mut section, path);
    }
    check_keys(&mut section, &file.config);
    section
}

/// Checks that this user could listen at the addresses of the file now.
fn check_listen(section: &mut CheckSection, addresses: impl Iterator<Item = (SocketAddr, &'static str)>) {
    let mut free_count = 0;
    for (address, transport) in addresses.filter(|(address, _)| address.port() != 0) {
        let outcome = match transport {
            "udp" => UdpSocket::bind(address).map(drop),
            _ => TcpListener::bind(address).map(drop),
        };
        match outcome {
            Ok(()) => free_count += 1,
            Err(error) => add_bind_failure(section, address, transport, &error),
        }
    }
    if free_count > 0 {
        section.ok(format!(
            "{} can be listened on",
            if free_count == 1 { "1 address".to_owned() } else { format!("{free_count} addresses") }
        ));
    }
}

fn add_bind_failure(
    section: &mut CheckSection,
    address: SocketAddr,
    transport: &str,
    error: &std::io::Error,
) {
    let (message, hint) = match error.kind() {
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
    section.fail(format!("{address} ({transport}): {message}"), hint, GuidePage::Permissions);
}

fn check_control_folder(section: &mut CheckSection, file: &ConfigFile) {
    let admin = file.admin();
    let Some(socket) = admin.control else { return };
    let folder = folder_of(&socket);
    let is_usable = if admin.control_is_set {
        access(folder, Access::WRITE_OK).is_ok()
    } else {
        config::is_usable(&socket)
    };
    if is_usable {
        section.ok(format!("the control socket can be made in {}", folder.display()));
        return;
    }
    let message = format!("this user cannot make the control socket in {}", folder.display());
    let hint = "set [admin] control to a folder of its own, such as RuntimeDirectory= gives a unit";
    if admin.control_is_set {
        section.fail(message, hint, GuidePage::Permissions)
    } else {
        section.warn(message, hint, GuidePage::Permissions)
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

fn check_writable(section: &mut CheckSection, path: &Path) {
    let target = if path.exists() { path } else { folder_of(path) };
    match access(target, Access::WRITE_OK) {
        Ok(()) => section.ok(format!("{} can be written", path.display())),
        Err(error) => section.fail(
            format!("{} cannot be written: {error}", path.display()),
            "make the folder, and give it to the user of the balancer",
            GuidePage::Permissions,
        ),
    }
}

/// Finds private keys that every user of the host can read.
fn check_keys(section: &mut CheckSection, config: &Config) {
    let listeners = config.listeners.iter();
    let tls = listeners.clone().flat_map(|listener| &listener.tls).flat_map(|tls| &tls.certificates);
    let cookies = listeners.flat_map(|listener| &listener.affinity);
    let cookies = cookies.flat_map(|affinity| affinity.key_file.iter().chain(&affinity.old_key_file));
    let own_certificates = config.groups.iter().flat_map(|group| &group.tls).flat_map(|tls| &tls.own);
    let lottery = config.groups.iter().flat_map(|group| &group.lottery).map(|settings| &settings.keys);
    let control = config.admin.tls.iter().map(|tls| &tls.key);
    let key_files = tls
        .chain(own_certificates)
        .map(|certificate| &certificate.key)
        .chain(cookies)
        .chain(lottery)
        .chain(control);
    let (mut private_count, mut readable_count) = (0, 0);
    for FilePath(path) in key_files {
        let Ok(metadata) = std::fs::metadata(path) else { continue };
        if metadata.permissions().mode() & 0o004 == 0 {
            private_count += 1;
            continue;
        }
        readable_count += 1;
        section.warn(
            format!("everybody on this host can read the key {}", path.display()),
            format!("chmod o-r {}", path.display()),
            GuidePage::Permissions,
        );
    }
    if private_count > 0 && readable_count == 0 {
        section.ok("private keys are not for everybody to read");
    }
}

/// Lists the rights to look and to act.
pub(super) fn check_control_rights(file: &ConfigFile) -> CheckSection {
    let mut section = CheckSection::new("control access");
    let admin = file.admin();
    match admin.listen {
        Some(address) if !address.ip().is_loopback() => section.warn(
            format!("every client that reaches {address} sees status, metrics and events"),
            "listen on 127.0.0.1, or keep others out of that network",
            GuidePage::Access,
        ),
        Some(address) => section.ok(format!("looking: {address}, from this host only")),
        None => section.ok("looking: by the control addresses only"),
    }
    if let Some(address) = admin.reports.filter(|address| address.ip().is_unspecified()) {
        section.warn(
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
            Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => section.warn(
                format!("{} is open to other users", socket.display()),
                format!("chmod 600 {}", socket.display()),
                GuidePage::Access,
            ),
            _ => section.ok(format!("acting: {}, by its owner and root", socket.display())),
        },
        None if admin.tls.is_none() => section.warn(
            "no client can drain, reload or stop: there is no control address",
            "set [admin] control = \"unix:/run/plimsoll.sock\"",
            GuidePage::Access,
        ),
        None => {}
    }
    if let Some((tls, jwt, keytab)) = &admin.tls {
        let methods = [
            ("certificates", tls.client_ca.is_some()),
            ("tokens", jwt.is_some()),
            ("Kerberos tickets", keytab.is_some()),
        ];
        let methods: Vec<&str> =
            methods.iter().filter(|(_, is_enabled)| *is_enabled).map(|(method, _)| *method).collect();
        section.ok(format!("acting over TLS: {}, by {}", tls.address, methods.join(", ")));
        if admin.audit.is_none() {
            section.warn(
                "what others do over TLS is written down nowhere",
                "set [admin] audit = \"/var/log/plimsoll/audit.log\"",
                GuidePage::Access,
            );
        }
        match file.rules() {
            Ok(_) => section.ok("the rules of who may do what can be read"),
            Err(error) => section.fail(error, "mend the file of [admin.access]", GuidePage::Access),
        }
    }
    section
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
