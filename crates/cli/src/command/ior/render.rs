//! A reference in words, and as JSON.

use std::fmt::Write as _;

use plimsoll_wire::giop::component::{ALTERNATE_ADDRESS, CODE_SETS, ORB_TYPE};
use plimsoll_wire::giop::{
    CdrReader, CodeSet, CodeSets, Corbaloc, IIOP_TAG, IiopProfile, Ior, TaggedComponent, TaggedProfile,
    escape_key,
};
use serde_json::{Value, json};

use crate::control::format::{TextStyle, sanitize};

/// The maximum number of bytes of unknown data that are shown to people.
const MAX_HEX_BYTES: usize = 32;

/// Returns the table for people.
pub(super) fn table(ior: &Ior, color: bool) -> String {
    let mut lines =
        vec![("type", if ior.type_id.is_empty() { "not said".to_owned() } else { lossy_text(&ior.type_id) })];
    if ior.is_nil() {
        lines.push(("object", TextStyle::Bad.paint("none: it is the nil reference", color)));
    }
    for profile in &ior.profiles {
        profile_lines(profile, color, &mut lines);
    }
    let mut out = String::new();
    for (name, text) in lines {
        let _ = writeln!(out, "{name:<10} {text}");
    }
    out
}

/// Returns the document for programs.
pub(super) fn json(ior: &Ior) -> Value {
    json!({
        "type_id": String::from_utf8_lossy(&ior.type_id),
        "nil": ior.is_nil(),
        "profiles": ior.profiles.iter().map(profile_json).collect::<Vec<_>>(),
        "ior": ior.to_string(),
        "corbaloc": Corbaloc::from_ior(ior).map(|corbaloc| corbaloc.to_string()),
    })
}

fn profile_lines(profile: &TaggedProfile, color: bool, lines: &mut Vec<(&'static str, String)>) {
    let iiop = match IiopProfile::parse(&profile.data) {
        Ok(iiop) if profile.tag == IIOP_TAG => iiop,
        Err(error) if profile.tag == IIOP_TAG => {
            return lines.push(("IIOP", TextStyle::Bad.paint(&format!("cannot be read: {error}"), color)));
        }
        _ => {
            return lines
                .push(("profile", format!("tag {}: {}", profile.tag, hex(&profile.data, MAX_HEX_BYTES))));
        }
    };
    let addresses: Vec<_> = iiop.addresses().map(|address| sanitize(&address.to_string())).collect();
    lines.push(("address", format!("{}   GIOP 1.{}", addresses.join("  "), iiop.version.minor())));
    lines.push(("key", format!("{}   {} bytes", escape_key(&iiop.key), iiop.key.len())));
    for component in &iiop.components {
        match (component.tag, component.code_sets()) {
            (_, Some(sets)) => {
                lines.push(("char", format_code_set(&sets.char)));
                lines.push(("wchar", format_code_set(&sets.wchar)));
            }
            (ALTERNATE_ADDRESS, _) if component.address().is_some() => {} // among the addresses
            (ORB_TYPE, _) => lines.push(("made by", orb_name(component))),
            (tag, _) => {
                lines.push(("component", format!("tag {tag}: {}", hex(&component.data, MAX_HEX_BYTES))))
            }
        }
    }
}

fn profile_json(profile: &TaggedProfile) -> Value {
    let iiop = if profile.tag == IIOP_TAG { IiopProfile::parse(&profile.data).ok() } else { None };
    let iiop = iiop.map(|iiop| {
        json!({
            "version": format!("1.{}", iiop.version.minor()),
            "host": iiop.host,
            "port": iiop.port,
            "key": escape_key(&iiop.key),
            "addresses": iiop.addresses().map(|address| address.to_string()).collect::<Vec<_>>(),
            "components": iiop.components.iter().map(component_json).collect::<Vec<_>>(),
        })
    });
    json!({"tag": profile.tag, "data": hex(&profile.data, usize::MAX), "iiop": iiop})
}

fn component_json(component: &TaggedComponent) -> Value {
    let sets = component.code_sets().map(|sets| {
        let set = |set: &CodeSet| json!({"native": set.native, "conversions": set.conversions});
        json!({"char": set(&sets.char), "wchar": set(&sets.wchar)})
    });
    let name = match component.tag {
        ORB_TYPE => Some("orb_type"),
        CODE_SETS => Some("code_sets"),
        ALTERNATE_ADDRESS => Some("alternate_iiop_address"),
        _ => None,
    };
    json!({"tag": component.tag, "name": name, "data": hex(&component.data, usize::MAX), "code_sets": sets})
}

/// Returns the program that made the reference, by its number with the OMG: often four letters.
fn orb_name(component: &TaggedComponent) -> String {
    let number = CdrReader::encapsulation(&component.data).and_then(|mut reader| reader.u32());
    let Ok(number) = number else { return hex(&component.data, MAX_HEX_BYTES) };
    match number {
        0x4154_5400 => "omniORB".to_owned(),
        0x4a41_4300 => "JacORB".to_owned(),
        0x5441_4f00 => "TAO".to_owned(),
        number => format!("ORB type {number:#010x}"),
    }
}

fn format_code_set(set: &CodeSet) -> String {
    let conversions: Vec<String> = set.conversions.iter().map(|number| code_set_name(*number)).collect();
    let conversions =
        if conversions.is_empty() { String::new() } else { format!(", also {}", conversions.join(", ")) };
    format!("{}{conversions}", code_set_name(set.native))
}

fn code_set_name(number: u32) -> String {
    match number {
        0 => "none".to_owned(),
        CodeSets::LATIN_1 => "ISO 8859-1".to_owned(),
        CodeSets::UTF_8 => "UTF-8".to_owned(),
        CodeSets::UTF_16 => "UTF-16".to_owned(),
        0x0001_0020 => "ISO 646".to_owned(),
        0x0001_0100 => "UCS-2".to_owned(),
        number => format!("{number:#010x}"),
    }
}

fn lossy_text(bytes: &[u8]) -> String {
    sanitize(&String::from_utf8_lossy(bytes))
}

/// Returns at most so many bytes, and their total number if that is not all.
fn hex(bytes: &[u8], max_bytes: usize) -> String {
    let mut out = String::with_capacity(2 * bytes.len().min(max_bytes));
    for byte in bytes.iter().take(max_bytes) {
        let _ = write!(out, "{byte:02x}");
    }
    if bytes.len() > max_bytes {
        let _ = write!(out, "... {} bytes", bytes.len());
    }
    out
}
