//! `$cbs`: clients put tokens here. Every token is accepted. As in the official emulator, access is controlled by who can
//! reach the port.

use amqp::{Map, Message};

use super::node_requests::{NodeResponse, StatusFieldNames};

const STATUS_FIELDS: StatusFieldNames =
    StatusFieldNames { status: "status-code", text: "status-description", condition: "error-condition" };

pub(super) fn respond(request: &Message) -> NodeResponse {
    let operation = request.application_property("operation").and_then(|value| value.as_str());
    let (status, text, condition) = match operation {
        Some("put-token" | "delete-token") => (202, "Accepted", None),
        _ => (400, "unknown operation", Some("amqp:not-implemented")),
    };
    NodeResponse { status, text: text.to_owned(), condition, body: Map::new(), status_fields: &STATUS_FIELDS }
}
