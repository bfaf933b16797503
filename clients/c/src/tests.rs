//! Compares the C header with the Rust code: functions, structure layouts and codes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::answer::{FURTHER, TEXT};
use crate::{MAX_INFO, fault, plimsoll_answer, plimsoll_member, plimsoll_options};

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads the header, removes its comments and collapses white space.
fn header() -> String {
    let text = std::fs::read_to_string(home().join("include/plimsoll.h")).unwrap();
    let mut plain = String::new();
    for part in text.split("/*") {
        plain += part.split_once("*/").map_or(part, |(_, rest)| rest);
        plain.push(' ');
    }
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the C spelling of a Rust type used in a signature.
fn c_type(rust: &str) -> String {
    let (rust, pointers) = match rust.trim() {
        text if text.starts_with("*mut *mut ") => (&text[10..], " **"),
        text if text.starts_with("*mut ") => (&text[5..], " *"),
        text if text.starts_with("*const ") => (&text[7..], " *"),
        text => (text, " "),
    };
    let name = match rust {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "usize" => "size_t",
        "u16" => "uint16_t",
        name => name,
    };
    format!("{name}{pointers}")
}

/// Returns the expected C prototype of each exported function.
fn prototypes() -> BTreeMap<String, String> {
    let source = std::fs::read_to_string(home().join("src/lib.rs")).unwrap();
    let functions = source.split("extern \"C\" fn ").skip(1).map(|rest| {
        let (signature, _) = rest.split_once('{').unwrap();
        let (name, rest) = signature.split_once('(').unwrap();
        let (args, result) = rest.split_once(')').unwrap();
        let constant = |rust: &str| if rust.trim().starts_with("*const ") { "const " } else { "" };
        let args: Vec<String> = args
            .split(',')
            .filter_map(|arg| arg.split_once(':'))
            .map(|(name, rust)| format!("{}{}{}", constant(rust), c_type(rust), name.trim()))
            .collect();
        let args = if args.is_empty() { "void".to_owned() } else { args.join(", ") };
        let result = match result.split_once("->") {
            Some((_, rust)) => format!("{}{}", constant(rust), c_type(rust)),
            None => "void ".to_owned(),
        };
        (name.to_owned(), format!("{result}{name}({args});"))
    });
    functions.collect()
}

#[test]
fn every_function_is_in_the_header_as_it_is_here_and_no_other() {
    let (header, prototypes) = (header(), prototypes());
    assert!(prototypes.len() >= 17, "{prototypes:?}");
    for prototype in prototypes.values() {
        assert!(header.contains(prototype), "the header lacks {prototype}");
    }
    let declared: BTreeSet<&str> = header
        .split('(')
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("plimsoll_"))
        .collect();
    let here: BTreeSet<&str> = prototypes.keys().map(String::as_str).collect();
    // `PLIMSOLL_OPTIONS`, which sets the size, is a macro and not among them.
    assert_eq!(declared, here);
}

/// Compiles and runs a program that prints sizes, offsets and constants of the header, by name.
fn told(language: &str, compiler: &str) -> BTreeMap<String, usize> {
    const ASKS: &[(&str, &[&str])] = &[
        (
            "plimsoll_options",
            &["size", "daemons", "keys", "multicast", "multicast_if", "lottery", "attempts"],
        ),
        ("plimsoll_member", &["address", "address_len", "number", "text"]),
        ("plimsoll_answer", &["member", "further", "further_len", "info_len", "info"]),
    ];
    let mut program = "#include <stdio.h>\n#include \"plimsoll.h\"\nint main(void) {\n".to_owned();
    let mut print = |name: &str, value: &str| {
        program += &format!("printf(\"%s %zu\\n\", \"{name}\", (size_t) ({value}));\n");
    };
    for (kind, fields) in ASKS {
        print(kind, &format!("sizeof({kind})"));
        for field in *fields {
            print(&format!("{kind}.{field}"), &format!("offsetof({kind}, {field})"));
        }
    }
    for number in ["PLIMSOLL_FURTHER", "PLIMSOLL_INFO", "PLIMSOLL_TEXT"] {
        print(number, number);
    }
    program += "return 0;\n}\n";
    let folder = Folder::new(language);
    let (source, binary) = (folder.0.join("layout"), folder.0.join("program"));
    std::fs::write(&source, program).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language, "-I"]);
    command.arg(home().join("include")).arg(&source).arg("-o").arg(&binary);
    let built =
        command.output().unwrap_or_else(|why| panic!("{compiler} (scripts/install-test-deps): {why}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let out = Command::new(&binary).output().unwrap().stdout;
    let lines = String::from_utf8(out).unwrap();
    let pair =
        |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    lines.lines().filter_map(pair).collect()
}

/// A temporary folder, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("plimsoll-c-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn structures_lie_as_compilers_of_c_put_them() {
    let mut here = BTreeMap::new();
    macro_rules! lies {
        ($kind:ident: $($field:ident)*) => {
            here.insert(stringify!($kind).to_owned(), size_of::<$kind>());
            $(
                here.insert(
                    format!("{}.{}", stringify!($kind), stringify!($field)),
                    offset_of!($kind, $field),
                );
            )*
        };
    }
    lies!(plimsoll_options: size daemons keys multicast multicast_if lottery attempts);
    lies!(plimsoll_member: address address_len number text);
    lies!(plimsoll_answer: member further further_len info_len info);
    for (name, value) in [("PLIMSOLL_FURTHER", FURTHER), ("PLIMSOLL_INFO", MAX_INFO), ("PLIMSOLL_TEXT", TEXT)]
    {
        here.insert(name.to_owned(), value);
    }
    assert_eq!(told("c", "cc"), here);
    assert_eq!(told("c++", "g++"), here);
}

#[test]
fn codes_are_numbered_as_in_the_header_and_have_words() {
    let header = header();
    let (_, rest) = header.split_once("enum {").unwrap();
    let (codes, _) = rest.split_once('}').unwrap();
    let mut words = BTreeSet::new();
    for code in codes.split(',') {
        let (name, number) = code.split_once('=').unwrap();
        let number: i32 = number.trim().parse().unwrap();
        let said = fault::words(number).to_str().unwrap();
        assert!(said != "unknown code" && words.insert(said), "{name} {number}: {said}");
        let here = format!("const {}: c_int = {number};", name.trim().trim_start_matches("PLIMSOLL_"));
        let source = include_str!("fault.rs");
        assert!(source.contains(&here), "fault.rs lacks `{here}`");
    }
    assert_eq!(fault::words(7), c"unknown code");
}
