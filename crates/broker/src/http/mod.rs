//! The broker's HTTP API: administration of entities over Atom, `/health`, and test hooks.
//!
//! [`HttpService`] handles requests by calling a [`NamespaceBackend`] (the engine). [`serve_connection`] runs it on a stream that
//! the listener has accepted and detected as HTTP. [`crate::atom`] reads and writes the XML. Nothing here opens a socket, stores
//! an entity, or decides whether a value is allowed.
//!
//! | path | |
//! | --- | --- |
//! | `/{entity}`, `/{topic}/Subscriptions/{name}` | PUT creates, or with `If-Match` changes; GET, DELETE |
//! | `/$Resources/queues`, `/$Resources/topics`, `/{topic}/Subscriptions` | lists, by `$skip` and `$top` |
//! | `/{topic}/Subscriptions/{name}/Rules`, `…/Rules/{rule}` | the default rule; other rules are not implemented |
//! | `/$namespaceinfo`, `/health` | |
//! | `/` for browsers, `/$page/…` | the [page](crate::page) |
//! | `/$test/…` | only if a token is configured and sent: see [`TestCommand`] |

mod backend;
mod host;
mod response;
mod route;
mod rules;
mod server;
mod service;
mod test_hooks;
mod write_timeout;

/// Decodes percent-encoded text; `None` if it is malformed.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    route::percent_decode(text).ok()
}

pub use backend::{BackendError, EntityListing, NamespaceBackend, PageRange};
pub use server::serve_connection;
pub use service::{Config, HttpService};
pub use test_hooks::{
    FaultKind, FaultOccasion, FaultSchedule, FaultSpec, FaultTiming, TEST_TOKEN_HEADER, TestCommand, TestReport,
};
