//! The dashboard: a few static files, compiled into the binary. It has no build step and loads nothing from other hosts.

use hyper::StatusCode;

use crate::response::{self, AdminResponse};

const PAGE: &str = include_str!("../dashboard/index.html");
const STYLE: &str = include_str!("../dashboard/dashboard.css");
const SCRIPT: &str = include_str!("../dashboard/dashboard.js");
const FORMAT: &str = include_str!("../dashboard/format.js");
const ELEMENTS: &str = include_str!("../dashboard/elements.js");
const OPERATOR: &str = include_str!("../dashboard/operator.js");
const PLOT: &str = include_str!("../dashboard/plot.js");
const MARK: &str = include_str!("../dashboard/mark.svg");

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

pub(crate) fn file(path: &str) -> Option<AdminResponse> {
    let (content_type, body) = match path {
        "/" => ("text/html; charset=utf-8", PAGE),
        "/dashboard.css" => ("text/css; charset=utf-8", STYLE),
        "/dashboard.js" => (JAVASCRIPT, SCRIPT),
        "/format.js" => (JAVASCRIPT, FORMAT),
        "/elements.js" => (JAVASCRIPT, ELEMENTS),
        "/operator.js" => (JAVASCRIPT, OPERATOR),
        "/plot.js" => (JAVASCRIPT, PLOT),
        "/mark.svg" => ("image/svg+xml", MARK),
        _ => return None,
    };
    Some(response::build(StatusCode::OK, content_type, body))
}
