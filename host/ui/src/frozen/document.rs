//! HTML document of a file: the page's own, with its style, scripts and data embedded.

use super::script::joined;
use crate::assets::{self, CHART_LIBRARY};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Lines of the live page's document that load what a file embeds.
const LINKS: [&str; 4] = [
    "<link rel=\"stylesheet\" href=\"uplot.css\">\n",
    "<link rel=\"stylesheet\" href=\"style.css\">\n",
    "<script src=\"uplot.js\" defer></script>\n",
    "<script src=\"app.js\" type=\"module\"></script>\n",
];
const FIRST_LINE: &str = "<meta charset=\"utf-8\">\n";
const TITLE: &str = "<title>rlhost</title>";

/// Returns the HTML of a file.
pub(super) fn html(title: &str, answers: &Value) -> String {
    let style = format!("\n{}\n{}\n", assets::text("uplot.css"), assets::text("style.css"));
    let library = format!("\n{CHART_LIBRARY}\n");
    let script = format!("\n{}", joined(&assets::modules().collect::<Vec<_>>()));
    // A file has no HTTP headers. The policy allows only the embedded scripts and styles.
    let policy = format!(
        "default-src 'none'; script-src {} {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        hash(&library),
        hash(&script),
        hash(&style)
    );
    // Without `<`, a block of JSON can't contain a tag.
    let data = answers.to_string().replace('<', "\\u003c");
    let head = format!("{FIRST_LINE}<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n");
    let own = format!(
        "<style>{style}</style>\n<script type=\"application/json\" id=\"frozen\">{data}</script>\n<script>{library}</script>\n\
         <script type=\"module\">{script}</script>\n"
    );
    let page = LINKS.iter().fold(assets::text("").to_owned(), |page, link| page.replacen(link, "", 1));
    let page =
        page.replacen(FIRST_LINE, &head, 1).replacen(TITLE, &format!("<title>{} \u{b7} rlhost</title>", escaped(title)), 1);
    page.replacen("</head>", &format!("{own}</head>"), 1)
}

/// Returns the policy source that allows a script or style with this text.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_that_the_live_page_loads_is_inside_and_nothing_else_runs() {
        let hostile = "</script><script>alert(1)</script><!--";
        let page = html("a <b> & c", &json!({ hostile: hostile }));
        assert!(LINKS.iter().all(|link| assets::text("").matches(link).count() == 1 && !page.contains(link)));
        assert!(page.contains("<title>a &lt;b&gt; &amp; c \u{b7} rlhost</title>"));
        assert_eq!(
            (page.matches("<script").count(), page.matches("</script").count(), page.matches("<style").count()),
            (3, 3, 1)
        );
        assert!(!page.contains("<!--") && page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        for loading in ["src=", "@import", "url(", "XMLHttpRequest", "WebSocket", "sendBeacon", "import("] {
            assert!(!page.contains(loading), "{loading}");
        }
        let targets: Vec<&str> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(targets, ["data:,", "#main"]);
        let policy = page.split("content=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe") && !policy.contains("connect-src"),
            "{policy}"
        );
        // The embedded scripts and styles have the hashes in the policy.
        for (begin, end) in [("<style>", "</style>"), ("<script>", "</script>"), ("<script type=\"module\">", "</script>")] {
            let inside = page.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).unwrap().0;
            assert!(policy.contains(&hash(inside)), "{begin}");
        }
        assert!(page.contains("uPlot (v1.6.32)"));
    }
}
