//! The page for people: three files, in the binary as they are written. No build step, and nothing from elsewhere.

use hyper::StatusCode;

use crate::reply::{Response, reply};

const PAGE: &str = include_str!("../dashboard/index.html");
const STYLE: &str = include_str!("../dashboard/dashboard.css");
const SCRIPT: &str = include_str!("../dashboard/dashboard.js");
const PLOT: &str = include_str!("../dashboard/plot.js");
const MARK: &str = include_str!("../dashboard/mark.svg");

pub(crate) fn file(path: &str) -> Option<Response> {
    let (kind, body) = match path {
        "/" => ("text/html; charset=utf-8", PAGE),
        "/dashboard.css" => ("text/css; charset=utf-8", STYLE),
        "/dashboard.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "/plot.js" => ("text/javascript; charset=utf-8", PLOT),
        "/mark.svg" => ("image/svg+xml", MARK),
        _ => return None,
    };
    Some(reply(StatusCode::OK, kind, body))
}
