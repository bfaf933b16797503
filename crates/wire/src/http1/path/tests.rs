//! Tables of paths, targets and queries. Properties of all inputs are in `tests/laws/path.rs`.

use super::*;

/// Paths, and their normal forms.
const NORMAL: &[(&str, Result<&str, PathError>)] = &[
    // In normal form already.
    ("/", Ok("/")),
    ("/a", Ok("/a")),
    ("/a/", Ok("/a/")),
    ("/a/b.c", Ok("/a/b.c")),
    ("/.well-known/x", Ok("/.well-known/x")),
    ("/...", Ok("/...")),
    ("/.../a", Ok("/.../a")),
    ("/..a/.b/c../d.", Ok("/..a/.b/c../d.")),
    ("/a:b@c!$&'()*+,;=~_-", Ok("/a:b@c!$&'()*+,;=~_-")),
    ("/a;v=1/b", Ok("/a;v=1/b")),
    ("/*", Ok("/*")),
    ("/%C3%A9", Ok("/%C3%A9")),
    ("/caf\u{e9}", Ok("/caf\u{e9}")),
    ("/\"<>^`{|}", Ok("/\"<>^`{|}")),
    // Escapes of unreserved characters are decoded, the others are in upper case.
    ("/%41", Ok("/A")),
    ("/%7euser", Ok("/~user")),
    ("/%61%2D%2e%5f%7A%39", Ok("/a-._z9")),
    ("/%c3%a9", Ok("/%C3%A9")),
    ("/a%2fb", Ok("/a%2Fb")),
    ("/a%5cb", Ok("/a%5Cb")),
    ("/a%3fb%23c", Ok("/a%3Fb%23c")),
    ("/%20%0d%0a%7f", Ok("/%20%0D%0A%7F")),
    ("/%3b%3a%40", Ok("/%3B%3A%40")),
    // Nothing is decoded twice.
    ("/%25", Ok("/%25")),
    ("/%2541", Ok("/%2541")),
    ("/%252e%252e/a", Ok("/%252e%252e/a")),
    ("/a/%252e%252e%252fb", Ok("/a/%252e%252e%252fb")),
    ("/%25%32%65", Ok("/%252e")),
    ("/%%32e", Err(PathError::BadEscape)),
    // Slashes.
    ("//", Ok("/")),
    ("//a", Ok("/a")),
    ("///a//b///", Ok("/a/b/")),
    ("//evil.example/a", Ok("/evil.example/a")),
    ("/a//../b", Ok("/b")),
    // Dot segments.
    ("/.", Ok("/")),
    ("/./", Ok("/")),
    ("/a/.", Ok("/a/")),
    ("/a/./b", Ok("/a/b")),
    ("/a/..", Ok("/")),
    ("/a/../", Ok("/")),
    ("/a/b/..", Ok("/a/")),
    ("/a/b/../c", Ok("/a/c")),
    ("/a/b/c/./../../g", Ok("/a/g")),
    ("/mid/content=5/../6", Ok("/mid/6")),
    ("/a/%2e/b", Ok("/a/b")),
    ("/a/%2E%2e/b", Ok("/b")),
    ("/a/.%2E/b", Ok("/b")),
    ("/a/%2e./b", Ok("/b")),
    ("/a/%2e%2E", Ok("/")),
    ("/public/%2e%2e/admin", Ok("/admin")),
    ("/public/..%2fadmin", Ok("/public/..%2Fadmin")),
    ("/public/..%5Cadmin", Ok("/public/..%5Cadmin")),
    ("/public/..\\admin", Ok("/public/..\\admin")),
    ("/public/..;/admin", Ok("/public/..;/admin")),
    ("/public/..%c0%af", Ok("/public/..%C0%AF")),
    ("/public/%c0%ae%c0%ae/admin", Ok("/public/%C0%AE%C0%AE/admin")),
    ("/public/....//admin", Ok("/public/..../admin")),
    // Above the root.
    ("/..", Err(PathError::AboveRoot)),
    ("/../", Err(PathError::AboveRoot)),
    ("/../a", Err(PathError::AboveRoot)),
    ("//..", Err(PathError::AboveRoot)),
    ("/./..", Err(PathError::AboveRoot)),
    ("/a/../..", Err(PathError::AboveRoot)),
    ("/a/../../b", Err(PathError::AboveRoot)),
    ("/a/../../a/b", Err(PathError::AboveRoot)),
    ("/%2e%2e/etc/passwd", Err(PathError::AboveRoot)),
    ("/a/%2e%2e/%2E%2E/etc/passwd", Err(PathError::AboveRoot)),
    // Malformed.
    ("", Err(PathError::NoSlash)),
    ("*", Err(PathError::NoSlash)),
    ("a/b", Err(PathError::NoSlash)),
    ("../a", Err(PathError::NoSlash)),
    ("\\a", Err(PathError::NoSlash)),
    ("%2Fa", Err(PathError::NoSlash)),
    ("/%", Err(PathError::BadEscape)),
    ("/%4", Err(PathError::BadEscape)),
    ("/%4/", Err(PathError::BadEscape)),
    ("/%zz", Err(PathError::BadEscape)),
    ("/%u002e", Err(PathError::BadEscape)),
    ("/%+1", Err(PathError::BadEscape)),
    ("/%00", Err(PathError::ForbiddenByte)),
    ("/a.php%00.png", Err(PathError::ForbiddenByte)),
    ("/a\0", Err(PathError::ForbiddenByte)),
    ("/a b", Err(PathError::ForbiddenByte)),
    ("/a\tb", Err(PathError::ForbiddenByte)),
    ("/a\r\nb", Err(PathError::ForbiddenByte)),
    ("/a\x7f", Err(PathError::ForbiddenByte)),
    ("/a#b", Err(PathError::ForbiddenByte)),
    ("/a?b", Err(PathError::ForbiddenByte)),
];

/// Paths in normal form, and how lenient servers read them.
const READINGS: &[(&str, Result<&[&str], PathError>)] = &[
    ("/", Ok(&[])),
    ("/a/b.c", Ok(&[])),
    ("/a%3Bb/%C3%A9", Ok(&[])),
    ("/%252F%255C", Ok(&[])),
    ("/a%2Fb", Ok(&["/a/b"])),
    ("/a%5Cb", Ok(&["/a/b"])),
    ("/a\\b", Ok(&["/a/b"])),
    ("/a\\", Ok(&["/a/"])),
    ("/%2Fa", Ok(&["/a"])),
    ("/a;v=1", Ok(&["/a"])),
    ("/a;v=1/b;w", Ok(&["/a/b"])),
    ("/a;v=1;w=2%2Fb", Err(PathError::SeparatorInParameters)),
    ("/a;%20x", Ok(&["/a"])),
    ("/;x/a", Ok(&["/a"])),
    ("/a/;x", Ok(&["/a/"])),
    ("/.;x", Ok(&["/"])),
    ("/a/.;x/b", Ok(&["/a/b"])),
    ("/public/..;/admin", Ok(&["/admin"])),
    ("/public/..;a=b/admin", Ok(&["/admin"])),
    ("/public/..%2Fadmin", Ok(&["/admin"])),
    ("/public/..%5Cadmin", Ok(&["/admin"])),
    ("/public\\..\\admin", Ok(&["/admin"])),
    ("/public;/..;/admin", Ok(&["/admin"])),
    ("/public/a;%2F..%2F..%2Fadmin", Err(PathError::SeparatorInParameters)),
    ("/a;x\\b", Err(PathError::SeparatorInParameters)),
    ("/a;x/b%2Fc", Ok(&["/a;x/b/c", "/a/b%2Fc", "/a/b/c"])),
    ("/x%2F..%2Fadmin/..;/y", Ok(&["/admin/..;/y", "/y", "/y"])),
    ("/a%2F%20b%252e", Ok(&["/a/%20b%252e"])),
    ("/..;", Err(PathError::AboveRoot)),
    ("/..;/a", Err(PathError::AboveRoot)),
    ("/..%2Fa", Err(PathError::AboveRoot)),
    ("/..\\a", Err(PathError::AboveRoot)),
    ("/a%2F..%2F..", Err(PathError::AboveRoot)),
    ("/a/..;/..;/b", Err(PathError::AboveRoot)),
];

#[test]
fn paths_have_one_normal_form() {
    for (path, expected) in NORMAL {
        let form = normal_path(path.as_bytes());
        assert_eq!(form.as_deref(), expected.as_ref().map(|form| form.as_bytes()), "{path:?}");
        if let Ok(form) = form {
            let is_borrowed = matches!(form, Cow::Borrowed(_));
            assert_eq!(is_borrowed, *form == *path.as_bytes(), "{path:?}");
        }
    }
}

#[test]
fn lenient_servers_read_other_paths() {
    for (path, expected) in READINGS {
        assert_eq!(normal_path(path.as_bytes()).as_deref(), Ok(path.as_bytes()), "a normal form: {path:?}");
        let read = other_readings(path.as_bytes());
        let expected = expected.map(|paths| paths.iter().map(|path| path.as_bytes().to_vec()).collect());
        assert_eq!(read, expected, "{path:?}");
    }
}

#[test]
fn targets_are_split_into_their_parts() {
    type Row<'t> = (&'t str, Option<&'t str>, Option<&'t str>, Option<&'t str>);
    let rows: [Row<'_>; 18] = [
        ("/p", None, Some("/p"), None),
        ("/p?q", None, Some("/p"), Some("q")),
        ("/p?", None, Some("/p"), Some("")),
        ("/?a=/b?c", None, Some("/"), Some("a=/b?c")),
        ("//h/p", None, Some("//h/p"), None),
        ("/http://h/p", None, Some("/http://h/p"), None),
        ("http://h/p?q", Some("h"), Some("/p"), Some("q")),
        ("HTTPS://h:1/", Some("h:1"), Some("/"), None),
        ("http://h", Some("h"), Some(""), None),
        ("http://h?q/r", Some("h"), Some(""), Some("q/r")),
        ("http:///p", Some(""), Some("/p"), None),
        ("http://u@[::1]:8/p", Some("u@[::1]:8"), Some("/p"), None),
        ("*", None, None, None),
        ("h:443", Some("h:443"), None, None),
        ("", Some(""), None, None),
        ("?q", Some("?q"), None, None),
        ("://h/p", Some("://h/p"), None, None),
        ("1a://h/p", Some("1a://h/p"), None, None),
    ];
    for (target, authority, path, query) in rows {
        let parts = split_target(target.as_bytes());
        assert_eq!(parts.authority, authority.map(str::as_bytes), "{target:?}");
        assert_eq!(parts.path.map(|range| &target[range]), path, "{target:?}");
        assert_eq!(parts.query, query.map(str::as_bytes), "{target:?}");
    }
}

#[test]
fn parameters_of_a_query_are_found_by_their_decoded_name() {
    for (query, name, expected) in [
        ("a=1", "a", Some("1")),
        ("a=1&a=2", "a", Some("1")),
        ("b=1&a=2", "a", Some("2")),
        ("a", "a", Some("")),
        ("a=", "a", Some("")),
        ("a==b=c", "a", Some("=b=c")),
        ("%61=%62", "a", Some("%62")),
        ("a+b=1", "a b", Some("1")),
        ("a%20b=1", "a b", Some("1")),
        ("a%2Bb=1", "a+b", Some("1")),
        ("a%26b%3d=1", "a&b=", Some("1")),
        ("%C3%A9=1", "\u{e9}", Some("1")),
        ("%2561=1", "%61", Some("1")),
        ("a%=1&%zz=2", "%zz", Some("2")),
        ("a%=1", "a%", Some("1")),
        ("&&a=1", "a", Some("1")),
        ("=1", "", Some("1")),
        ("&&", "", None),
        ("", "", None),
        ("", "a", None),
        ("A=1", "a", None),
        ("aa=1&b=a", "a", None),
        ("b=1;a=2", "a", None),
    ] {
        let found = query_value(query.as_bytes(), name);
        assert_eq!(found, expected.map(str::as_bytes), "{name:?} in {query:?}");
    }
}

#[test]
fn values_are_decoded_once() {
    for (text, expected) in
        [("", ""), ("a-b", "a-b"), ("a+b%20c", "a b c"), ("%2B%25%32", "+%2"), ("%", "%"), ("%4%41", "%4A")]
    {
        let value = decoded(text.as_bytes());
        assert_eq!(*value, *expected.as_bytes(), "{text:?}");
        assert_eq!(matches!(value, Cow::Borrowed(_)), !text.contains(['%', '+']), "{text:?}");
    }
    assert_eq!(*decoded(b"%ff%00"), [0xff, 0]);
}
