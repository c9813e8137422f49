//! The page for people: a few files, in the binary as they are written. No build step, and nothing from elsewhere.

use hyper::StatusCode;

use crate::reply::{Response, reply};

const PAGE: &str = include_str!("../dashboard/index.html");
const STYLE: &str = include_str!("../dashboard/dashboard.css");
const SCRIPT: &str = include_str!("../dashboard/dashboard.js");
const WORDS: &str = include_str!("../dashboard/words.js");
const PARTS: &str = include_str!("../dashboard/parts.js");
const OPERATOR: &str = include_str!("../dashboard/operator.js");
const PLOT: &str = include_str!("../dashboard/plot.js");
const MARK: &str = include_str!("../dashboard/mark.svg");

const SCRIPTED: &str = "text/javascript; charset=utf-8";

pub(crate) fn file(path: &str) -> Option<Response> {
    let (kind, body) = match path {
        "/" => ("text/html; charset=utf-8", PAGE),
        "/dashboard.css" => ("text/css; charset=utf-8", STYLE),
        "/dashboard.js" => (SCRIPTED, SCRIPT),
        "/words.js" => (SCRIPTED, WORDS),
        "/parts.js" => (SCRIPTED, PARTS),
        "/operator.js" => (SCRIPTED, OPERATOR),
        "/plot.js" => (SCRIPTED, PLOT),
        "/mark.svg" => ("image/svg+xml", MARK),
        _ => return None,
    };
    Some(reply(StatusCode::OK, kind, body))
}
