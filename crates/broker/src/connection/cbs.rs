//! `$cbs`: clients put tokens here. Without configured keys every token is accepted, as in the official emulator: then
//! access is controlled by who can reach the port. A token for an entity that does not exist is refused, as by the
//! service: the SDKs tell this error from others.

use amqp::{Map, Message};

use super::address::LinkAddress;
use super::node_requests::{NodeResponse, StatusFieldNames};
use crate::access::{AccessGrant, AccessKeys, TokenError};
use crate::atom::{AuthorizationRule, StoredOnlyProperties};
use crate::core::{Core, Error, Timestamp};

const STATUS_FIELDS: StatusFieldNames =
    StatusFieldNames { status: "status-code", text: "status-description", condition: "error-condition" };

pub(super) enum TokenRequest {
    /// Put a token for this entity; `None`: for the namespace.
    Put {
        path: Option<String>,
        token: String,
    },
    Delete,
    Unknown,
}

impl TokenRequest {
    pub(super) fn decode(request: &Message) -> Self {
        let property = |name| request.application_property(name).and_then(|value| value.as_str());
        match property("operation") {
            Some("put-token") => {
                let token = request.value().and_then(|value| value.as_str()).unwrap_or_default().to_owned();
                Self::Put { path: property("name").and_then(entity_path), token }
            }
            Some("delete-token") => Self::Delete,
            _ => Self::Unknown,
        }
    }

    /// `describe` formats the error for an entity that is not found. With `keys`, the token is verified.
    pub(super) fn execute(
        self,
        core: &Core,
        keys: Option<&AccessKeys>,
        now: Timestamp,
        creates_on_first_use: bool,
        describe: impl Fn(&Error) -> String,
    ) -> (NodeResponse, Option<AccessGrant>) {
        let (path, token) = match self {
            Self::Put { path, token } => (path, token),
            Self::Delete => return (accepted(), None),
            Self::Unknown => {
                return (respond(400, "unknown operation".to_owned(), Some("amqp:not-implemented")), None);
            }
        };
        let grant = match keys.map(|keys| verify(core, keys, &token, path.as_deref(), now)).transpose() {
            Ok(grant) => grant,
            Err(error) => return (respond(401, error.to_string(), Some("amqp:unauthorized-access")), None),
        };
        match path.filter(|_| !creates_on_first_use).map(|path| core.find_address(&path)).transpose() {
            Ok(_) => (accepted(), grant),
            Err(error) => (respond(error.status(), describe(&error), Some(error.condition())), None),
        }
    }
}

fn verify(
    core: &Core,
    keys: &AccessKeys,
    token: &str,
    path: Option<&str>,
    now: Timestamp,
) -> Result<AccessGrant, TokenError> {
    let path = path.unwrap_or_default();
    keys.verify(token, path, now, &stored_rules(core, path))
}

/// The authorization rules that are stored with the entity at a path and, for a subscription, with its topic.
fn stored_rules(core: &Core, path: &str) -> Vec<(String, AuthorizationRule)> {
    let views = core.entities_at(path);
    let rules = views.into_iter().flat_map(|view| {
        let data = view.description.common().administration_data.as_ref();
        // Data that cannot be parsed was written by a newer version. It grants nothing.
        let stored =
            data.and_then(|data| serde_json::from_str::<StoredOnlyProperties>(&data.0).ok()).unwrap_or_default();
        let entity = view.path.to_owned();
        stored.authorization_rules.into_iter().map(move |rule| (entity.clone(), rule))
    });
    rules.collect()
}

fn accepted() -> NodeResponse {
    respond(202, "Accepted".to_owned(), None)
}

/// The entity of an audience such as `sb://host/orders/$management`.
fn entity_path(audience: &str) -> Option<String> {
    match LinkAddress::parse(audience) {
        LinkAddress::Entity(path) | LinkAddress::Management(path) => Some(path).filter(|path| !path.is_empty()),
        LinkAddress::Cbs => None,
    }
}

fn respond(status: u16, text: String, condition: Option<&'static str>) -> NodeResponse {
    NodeResponse { status, text, condition, body: Map::new(), status_fields: &STATUS_FIELDS }
}
