//! The dashboard: a few static files, compiled into the binary. `web_page` has those that the broker's page uses too.

use hyper::StatusCode;
use web_page::{CSS, HTML, JAVASCRIPT};

use crate::response::{self, AdminResponse};

pub(crate) fn file(path: &str) -> Option<AdminResponse> {
    let (content_type, body) = match path {
        "/" => (HTML, include_str!("../dashboard/index.html")),
        "/dashboard.css" => (CSS, include_str!("../dashboard/dashboard.css")),
        "/dashboard.js" => (JAVASCRIPT, include_str!("../dashboard/dashboard.js")),
        "/operator.js" => (JAVASCRIPT, include_str!("../dashboard/operator.js")),
        "/read-models.js" => (JAVASCRIPT, include_str!("../dashboard/read-models.js")),
        "/pipelines.js" => (JAVASCRIPT, include_str!("../dashboard/pipelines.js")),
        "/plot.js" => (JAVASCRIPT, include_str!("../dashboard/plot.js")),
        shared => web_page::file(shared.strip_prefix('/')?)?,
    };
    Some(response::build(StatusCode::OK, content_type, body))
}
