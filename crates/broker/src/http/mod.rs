//! The HTTP side of the broker: administration of entities over Atom, `/health`, and hooks for tests.
//!
//! A [`Service`] answers requests by asking a [`Namespace`] (the engine); [`serve_connection`] serves it on a stream that
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
mod namespace;
mod patience;
mod reply;
mod route;
mod rules;
mod server;
mod service;
mod test_hooks;

pub use access::TokenCheck;
pub use namespace::{Failure, Listing, Namespace, Page};
pub use server::serve_connection;
pub use service::{Config, Service};
pub use test_hooks::{Fault, FaultKind, Schedule, TEST_TOKEN_HEADER, TestCommand, TestControl, TestReport};
