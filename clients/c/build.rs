//! Gives the shared library its name: programs look for it by the part of the version that breaks what they were built with.
//! Before 1.0 that is the minor version, too.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let version = match part("MAJOR").as_str() {
        "0" => format!("0.{}", part("MINOR")),
        major => major.to_owned(),
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libplimsoll.so.{version}");
}
