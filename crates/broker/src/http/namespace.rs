//! What the HTTP side asks of the engine.

use std::future::Future;

use crate::atom::{Address, Entity, NamespaceInfo, Properties};
use crate::core;

/// The entities of one broker. A handle: cheap to clone, used by every connection.
pub trait Namespace: Clone + Send + Sync + 'static {
    fn info(&self) -> NamespaceInfo;

    /// Whether requests are being served: what `/health` says.
    fn healthy(&self) -> impl Future<Output = bool> + Send;

    /// Fails when there is one of that name, whatever its kind.
    fn create(&self, at: Address, properties: Properties) -> impl Future<Output = Result<Entity, Failure>> + Send;

    fn update(&self, at: Address, properties: Properties) -> impl Future<Output = Result<Entity, Failure>> + Send;

    fn delete(&self, at: Address) -> impl Future<Output = Result<(), Failure>> + Send;

    fn get(&self, at: Address) -> impl Future<Output = Result<Entity, Failure>> + Send;

    /// Ordered by name. At most `page.top` of them; fewer means that there are no more.
    fn list(&self, listing: Listing, page: Page) -> impl Future<Output = Result<Vec<Entity>, Failure>> + Send;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    Queues,
    Topics,
    Subscriptions { topic: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    pub skip: usize,
    pub top: usize,
}

/// Why the engine did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] core::Error),
    #[error("the broker is stopping")]
    Stopping,
}
