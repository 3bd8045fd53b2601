//! Files of the page, which are embedded in the binary.

/// Chart library, which defines `uPlot`, and its stylesheet.
pub(crate) const CHART_LIBRARY: &str = include_str!("../vendor/uplot/uPlot.iife.min.js");
pub(crate) const CHART_STYLE: &str = include_str!("../vendor/uplot/uPlot.min.css");

const SCRIPT: &str = "text/javascript; charset=utf-8";
const LIBRARY: &str = "uplot.js";
const STYLE: &str = "text/css; charset=utf-8";

/// File of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    /// Path below the token.
    pub path: &'static str,
    /// Media type.
    pub kind: &'static str,
    pub text: &'static str,
}

macro_rules! asset {
    ($path:literal, $kind:expr) => {
        Asset { path: $path, kind: $kind, text: include_str!(concat!("../page/", $path)) }
    };
}

/// All files of the page.
pub(crate) const ASSETS: [Asset; 30] = [
    Asset { path: "", kind: "text/html; charset=utf-8", text: include_str!("../page/index.html") },
    asset!("app.js", SCRIPT),
    asset!("ask.js", SCRIPT),
    asset!("chart.js", SCRIPT),
    asset!("comparison.js", SCRIPT),
    asset!("completions.js", SCRIPT),
    asset!("curves.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("fork.js", SCRIPT),
    asset!("form.js", SCRIPT),
    asset!("events.js", SCRIPT),
    asset!("flags.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("found.js", SCRIPT),
    asset!("frozen.js", SCRIPT),
    asset!("kept.js", SCRIPT),
    asset!("metrics.js", SCRIPT),
    asset!("place.js", SCRIPT),
    asset!("rewards.js", SCRIPT),
    asset!("run.js", SCRIPT),
    asset!("runs.js", SCRIPT),
    asset!("sent.js", SCRIPT),
    asset!("steer.js", SCRIPT),
    asset!("tokens.js", SCRIPT),
    asset!("story.js", SCRIPT),
    asset!("versions.js", SCRIPT),
    asset!("whatif.js", SCRIPT),
    asset!("style.css", STYLE),
    Asset { path: LIBRARY, kind: SCRIPT, text: CHART_LIBRARY },
    Asset { path: "uplot.css", kind: STYLE, text: CHART_STYLE },
];

/// Returns the text of the file at a path; empty if there is none.
pub(crate) fn text(path: &str) -> &'static str {
    find(path).map_or("", |asset| asset.text)
}

/// Returns the modules of the page, in any order.
pub(crate) fn modules() -> impl Iterator<Item = Asset> {
    ASSETS.into_iter().filter(|asset| asset.kind == SCRIPT && asset.path != LIBRARY)
}

/// Returns the file at a path.
pub(crate) fn find(path: &str) -> Option<Asset> {
    ASSETS.into_iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_has_no_inline_script_or_style() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(bytes < 300 << 10, "{bytes} bytes");
        let html = find("").unwrap().text;
        assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick"), "{html}");
        assert!(html.matches("<script").all(|_| true) && !html.contains("<script>"), "{html}");
        for asset in modules() {
            for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!asset.text.contains(markup), "{} uses {markup}", asset.path);
            }
        }
    }

    #[test]
    fn modules_import_files_that_are_served() {
        for asset in modules() {
            for line in asset.text.lines().filter(|line| line.starts_with("import ")) {
                let from = line.rsplit('"').nth(1).unwrap_or_default();
                let path = from.strip_prefix("./").unwrap_or_else(|| panic!("{}: {line}", asset.path));
                assert!(find(path).is_some(), "{}: {line}", asset.path);
            }
        }
    }
}
