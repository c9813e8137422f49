//! The static files of the page, compiled into the binary.

use web_page::{CSS, HTML, JAVASCRIPT};

/// The content type and content of a file; an empty name is the page itself.
pub(super) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "" => (HTML, include_str!("../../page/index.html")),
        "broker.css" => (CSS, include_str!("../../page/broker.css")),
        "broker.js" => (JAVASCRIPT, include_str!("../../page/broker.js")),
        "api.js" => (JAVASCRIPT, include_str!("../../page/api.js")),
        "body.js" => (JAVASCRIPT, include_str!("../../page/body.js")),
        "draft.js" => (JAVASCRIPT, include_str!("../../page/draft.js")),
        "entities.js" => (JAVASCRIPT, include_str!("../../page/entities.js")),
        "messages.js" => (JAVASCRIPT, include_str!("../../page/messages.js")),
        "message.js" => (JAVASCRIPT, include_str!("../../page/message.js")),
        "tables.js" => (JAVASCRIPT, include_str!("../../page/tables.js")),
        shared => web_page::file(shared)?,
    })
}
