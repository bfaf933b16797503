//! `plimsoll ior`: references to CORBA objects, taken apart and made.

mod render;

use std::io::Read as _;
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_admin::ObjectReference;
use plimsoll_wire::giop::{
    ByteOrder, CodeSets, Corbaloc, Corbaname, GiopError, GiopVersion, IiopProfile, Ior, MAX_TEXT,
    TaggedComponent, escape_key,
};

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::BalancerSelector;
use crate::control::format::sanitize;
use crate::output::{self, OutputFormat};

/// Decode and create references to CORBA objects (IOR)
///
/// Output: -o table, json, ior (hexadecimal) or corbaloc (an address and a key).
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: IorCommand,
}

#[derive(Debug, Subcommand)]
enum IorCommand {
    /// Decode a reference: type, addresses, key, code sets and all other contents
    Show(IorShowArgs),
    /// Create the reference of an object from its address and key, and print it in hexadecimal
    Make(IorMakeArgs),
}

#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["reference", "group"]))]
struct IorShowArgs {
    /// Reference: IOR:..., corbaloc:..., corbaname:..., or a file with one of them; - reads standard input
    #[arg(value_name = "REFERENCE")]
    reference: Option<String>,

    /// Group with an iiop listener, whose reference for clients is requested from the running balancer
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    #[command(flatten)]
    at: BalancerSelector,
}

#[derive(clap::Args, Debug)]
struct IorMakeArgs {
    /// Address of the object, as `host:port` or `[::1]:port`; repeat for alternate addresses of the same
    /// object
    #[arg(short, long, value_name = "ADDRESS", required = true)]
    address: Vec<String>,

    /// Key of the object at that address; %xx is the byte xx
    #[arg(short, long, value_name = "KEY")]
    key: String,

    /// Type of the object (repository id). Some clients treat a reference without a type as nil
    #[arg(short, long, value_name = "TYPE", default_value = "IDL:omg.org/CORBA/Object:1.0")]
    type_id: String,

    /// Highest GIOP version of the server: 1.0, 1.1 or 1.2
    #[arg(long, value_name = "VERSION", default_value = "1.2", value_parser = ["1.0", "1.1", "1.2"])]
    giop: String,

    /// Omit the code sets of the server; clients then refuse to send wide strings
    #[arg(long)]
    no_code_sets: bool,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        IorCommand::Show(IorShowArgs { group: Some(group), at, .. }) => {
            print_reference(&fetch_group_reference(group, at)?, globals)?
        }
        IorCommand::Show(show_args) => {
            print_reference(&read_reference(show_args.reference.as_deref().unwrap_or_default())?, globals)?
        }
        IorCommand::Make(make_args) => {
            let ior = build_reference(make_args)?;
            match globals.output {
                OutputFormat::Table => output::write_stdout(&format!("{ior}\n"))?,
                _ => print_reference(&ior, globals)?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a reference in the form that was asked for.
fn print_reference(ior: &Ior, globals: &GlobalArgs) -> Result<(), CliError> {
    match globals.output {
        OutputFormat::Ior => output::write_stdout(&format!("{ior}\n")),
        OutputFormat::Corbaloc => match Corbaloc::from_ior(ior) {
            Some(corbaloc) => output::write_stdout(&format!("{corbaloc}\n")),
            None => {
                Err(CliError::failed("the reference has no IIOP address, so that no corbaloc can say it"))
            }
        },
        _ => globals.print_result(&render::json(ior), || render::table(ior, globals.stdout_has_color())),
    }
}

/// Returns the reference by which clients reach a group.
fn fetch_group_reference(group: &str, selector: &BalancerSelector) -> Result<Ior, CliError> {
    if group.is_empty() || !group.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return Err(usage_error(format_args!("{} is not the name of a group", sanitize(group))));
    }
    let reference: ObjectReference = selector.endpoint()?.get(&format!("/v1/groups/{group}/ior"))?;
    let version_error = |error: GiopError| {
        CliError::failed(format_args!("the balancer is of another version: {}", error.reason()))
    };
    reference.ior.parse().map_err(version_error)
}

/// Returns the reference of a text, or of the file that the text names.
fn read_reference(reference: &str) -> Result<Ior, CliError> {
    if let Some(ior) = parse_reference(reference) {
        return ior;
    }
    let path =
        reference.strip_prefix("file://").or_else(|| reference.strip_prefix("file:")).unwrap_or(reference);
    let unreadable = |error: std::io::Error| {
        usage_error(format_args!(
            "cannot read {path}: {error}; expected IOR:..., corbaloc:..., corbaname:... or a file with one \
             of them"
        ))
    };
    let mut text = String::new();
    let source: Box<dyn std::io::Read> = match path {
        "-" => Box::new(std::io::stdin()),
        path => Box::new(std::fs::File::open(path).map_err(unreadable)?),
    };
    source.take(2 * MAX_TEXT as u64).read_to_string(&mut text).map_err(unreadable)?;
    let first_line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    parse_reference(first_line).unwrap_or_else(|| {
        Err(usage_error(format_args!(
            "{path}: its first line is no reference; expected IOR:... or corbaloc:..."
        )))
    })
}

/// Parses a reference; `None` if the text has the form of none.
fn parse_reference(text: &str) -> Option<Result<Ior, CliError>> {
    let has_scheme =
        |scheme: &str| text.get(..scheme.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(scheme));
    let ior = if has_scheme("IOR:") {
        text.parse::<Ior>()
    } else if has_scheme("corbaloc:") {
        text.parse::<Corbaloc>().map(|corbaloc| corbaloc.ior())
    } else if has_scheme("corbaname:") {
        text.parse::<Corbaname>().map(|name| name.service.ior())
    } else {
        return None;
    };
    let excerpt: String = text.chars().take(60).collect();
    Some(ior.map_err(|error| usage_error(format_args!("`{excerpt}`: {}", error.reason()))))
}

fn build_reference(args: &IorMakeArgs) -> Result<Ior, CliError> {
    let mut corbalocs = Vec::new();
    for address in &args.address {
        // The key is percent-encoded as in a corbaloc, which covers every key.
        let text = format!("corbaloc:iiop:{}@{address}/{}", args.giop, args.key);
        let corbaloc: Corbaloc = text.parse().map_err(|error: GiopError| {
            usage_error(format_args!("`{address}` with key `{}`: {}", args.key, error.reason()))
        })?;
        corbalocs.push(corbaloc);
    }
    let mut components = Vec::new();
    if !args.no_code_sets {
        components.push(CodeSets::common_sets().component(ByteOrder::NATIVE));
    }
    let alternates = corbalocs.iter().skip(1).flat_map(|corbaloc| &corbaloc.addresses);
    components.extend(
        alternates.map(|address| {
            TaggedComponent::alternate_address(&address.host, address.port, ByteOrder::NATIVE)
        }),
    );
    let Some(Corbaloc { addresses, key }) = corbalocs.into_iter().next() else {
        return Err(usage_error("give --address"));
    };
    let [address] = &addresses[..] else {
        return Err(usage_error(format_args!("key `{}`: give one address each", escape_key(&key))));
    };
    if address.version == GiopVersion::V1_0 {
        // A profile of 1.0 has no room for components.
        components.clear();
    }
    let profile = IiopProfile {
        version: address.version,
        host: address.host.clone(),
        port: address.port,
        key,
        components,
    };
    Ok(Ior {
        type_id: args.type_id.clone().into_bytes(),
        profiles: vec![profile.to_tagged(ByteOrder::NATIVE)],
    })
}

fn usage_error(message: impl std::fmt::Display) -> CliError {
    CliError::new(CliExitCode::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_args(address: &[&str], key: &str) -> IorMakeArgs {
        IorMakeArgs {
            address: address.iter().map(|address| (*address).to_owned()).collect(),
            key: key.to_owned(),
            type_id: "IDL:Test/Latency:1.0".to_owned(),
            giop: "1.2".to_owned(),
            no_code_sets: false,
        }
    }

    #[test]
    fn what_is_made_is_read() {
        let ior = build_reference(&make_args(&["127.0.0.1:2809", "[::1]:99"], "a%00b")).unwrap();
        let parsed = read_reference(&ior.to_string()).unwrap();
        assert_eq!(parsed, ior);
        let location = Corbaloc::from_ior(&ior).unwrap().to_string();
        assert_eq!(location, "corbaloc:iiop:1.2@127.0.0.1:2809,iiop:1.2@[::1]:99/a%00b");
        insta::assert_snapshot!(render::table(&ior, false), @r"
        type       IDL:Test/Latency:1.0
        address    127.0.0.1:2809  [::1]:99   GIOP 1.2
        key        a%00b   3 bytes
        char       UTF-8, also ISO 8859-1
        wchar      UTF-16
        ");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (address, key) in [("h:x", "k"), ("", "k"), ("a,:b", "k"), ("h:1", "%zz")] {
            assert!(build_reference(&make_args(&[address], key)).is_err(), "{address} {key}");
        }
        for reference in ["IOR:00", "corbaloc:rir:/k", "/no/such/file", "corbaname::h#%ff"] {
            assert!(read_reference(reference).is_err(), "{reference}");
        }
    }
}
