//! The document around charts and tables.

/// Returns a self-contained HTML document: no scripts, no fonts, no links. `body` is HTML already.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// Escapes a text for HTML and SVG, attributes included.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML forbids these characters, also in escaped form.
            '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

const STYLE: &str = "
:root { --ink:#1c2733; --dim:#5a6775; --grid:#e3e7ec; --paper:#ffffff; --card:#f6f8fa; \
--good:#1a7f37; --bad:#b42318; }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e6edf3; --dim:#9aa7b4; --grid:#2a333d; --paper:#0f1419; --card:#182029; \
--good:#4ac26b; --bad:#ff7b72; }
}
* { box-sizing: border-box }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.5 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.6rem; margin: 0 0 .3rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem }
p { margin: .4rem 0 } .dim { color: var(--dim) }
figure { margin: 1rem 0; padding: .6rem; background: var(--card); border-radius: 8px; overflow-x: auto }
figure svg { width: 100%; min-width: 32rem; height: auto; display: block }
figcaption { color: var(--dim); font-size: .9rem; padding: .3rem .4rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--grid); white-space: nowrap }
th:first-child, td:first-child, td.text, th.text { text-align: left; white-space: normal }
th { color: var(--dim); font-weight: 600 }
.good { color: var(--good); font-weight: 600 } .bad { color: var(--bad); font-weight: 600 }
code, pre { font-family: ui-monospace, monospace; font-size: .92em }
pre { overflow-x: auto; background: var(--card); padding: .8rem; border-radius: 8px }
details { margin: .6rem 0 } summary { cursor: pointer }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_given_as_text_is_taken_for_markup() {
        assert_eq!(escape("<a href=\"x\">'&\u{1}"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{fffd}");
        let page = page("a < b", "<p>c</p>");
        assert!(page.contains("<title>a &lt; b</title>") && page.contains("<p>c</p>"));
        assert!(!page.contains("http"), "it needs nothing from elsewhere");
    }
}
