//! The HTTP side of the broker: administration of entities over Atom, `/health`, and hooks for tests.
//!
//! A [`HttpService`] answers requests by asking a [`NamespaceBackend`] (the engine); [`serve_connection`] serves it on a stream that
//! the listener has already accepted and recognised as HTTP. XML is [`crate::atom`]'s. Nothing here knows a socket, holds
//! an entity, or decides whether a value is allowed.
//!
//! | path | |
//! | --- | --- |
//! | `/{entity}`, `/{topic}/Subscriptions/{name}` | PUT creates, or with `If-Match` changes; GET, DELETE |
//! | `/$Resources/queues`, `/$Resources/topics`, `/{topic}/Subscriptions` | lists, by `$skip` and `$top` |
//! | `/{topic}/Subscriptions/{name}/Rules`, `…/Rules/{rule}` | the default rule; others are refused for now |
//! | `/$namespaceinfo`, `/health` | |
//! | `/$test/…` | only with a token configured, and shown: see [`TestCommand`] |

mod access;
mod backend;
mod response;
mod route;
mod rules;
mod server;
mod service;
mod test_hooks;
mod write_timeout;

pub use access::TokenCheck;
pub use backend::{BackendError, Listing, NamespaceBackend, PageRange};
pub use server::serve_connection;
pub use service::{Config, HttpService};
pub use test_hooks::{BrokerFault, FaultKind, FaultSchedule, TEST_TOKEN_HEADER, TestCommand, TestControl, TestReport};
