//! What the web pages of a pod and of the broker share: one look, a few scripts, and the security headers.
//!
//! A page is static files, compiled into the binary. It has no build step and loads nothing from other hosts. Scripts import each other
//! by relative paths, so a page can be served at any path.

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

pub const HTML: &str = "text/html; charset=utf-8";
pub const CSS: &str = "text/css; charset=utf-8";
pub const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
pub const SVG: &str = "image/svg+xml";

const CROSS_ORIGIN_OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");

/// Allows only files of the same server and nothing inline, so that markup in a name cannot run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The content type and the content of a shared file.
pub fn file(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "theme.css" => (CSS, include_str!("../assets/theme.css")),
        "format.js" => (JAVASCRIPT, include_str!("../assets/format.js")),
        "elements.js" => (JAVASCRIPT, include_str!("../assets/elements.js")),
        "dialog.js" => (JAVASCRIPT, include_str!("../assets/dialog.js")),
        "mark.svg" => (SVG, include_str!("../assets/mark.svg")),
        _ => return None,
    })
}

/// Sets the headers that every response of a page and of its API has.
pub fn set_security_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        // Every response describes this moment.
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (CROSS_ORIGIN_OPENER_POLICY, "same-origin"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
        (PERMISSIONS_POLICY, "camera=(), geolocation=(), microphone=()"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_files_import_only_each_other() {
        for name in ["format.js", "elements.js", "dialog.js"] {
            let (content_type, script) = file(name).expect("a shared file");
            assert_eq!(content_type, JAVASCRIPT);
            for import in script.lines().filter_map(|line| line.split_once(" from \"")) {
                let imported = import.1.strip_prefix("./").expect("a relative path").trim_end_matches("\";");
                assert!(file(imported).is_some(), "{name} imports {imported}");
            }
        }
        assert!(file("other.js").is_none());
    }

    #[test]
    fn nothing_inline_and_nothing_from_elsewhere_is_allowed() {
        let mut headers = HeaderMap::new();
        set_security_headers(&mut headers);
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().expect("text");
        assert!(policy.starts_with("default-src 'none';") && policy.contains("frame-ancestors 'none'"), "{policy}");
        for wide in ["unsafe", "http", "*", "data:"] {
            assert!(!policy.contains(wide), "{policy}");
        }
    }
}
