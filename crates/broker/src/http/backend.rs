//! What the HTTP service needs from the engine.

use std::future::Future;
use std::sync::Arc;

use super::test_hooks::{TestCommand, TestReport};
use crate::atom::{AdminEntity, EntityAddress, EntityProperties, NamespaceInfo};
use crate::core::{self, Timestamp};
use crate::rules::{CompiledRule, RuleDescription};

/// The entities of one broker. Cheap to clone; every connection has a handle.
pub trait NamespaceBackend: Clone + Send + Sync + 'static {
    fn info(&self) -> NamespaceInfo;

    /// The broker's clock, for the expiry of tokens.
    fn now(&self) -> Timestamp;

    /// True if the engine replies; reported by `/health`.
    fn is_healthy(&self) -> impl Future<Output = bool> + Send;

    /// Fails if an entity of this name exists, whatever its kind. A subscription gets `first_rule` in place of the
    /// default rule.
    fn create(
        &self,
        at: EntityAddress,
        properties: EntityProperties,
        first_rule: Option<RuleDescription>,
    ) -> impl Future<Output = Result<AdminEntity, BackendError>> + Send;

    fn update(
        &self,
        at: EntityAddress,
        properties: EntityProperties,
    ) -> impl Future<Output = Result<AdminEntity, BackendError>> + Send;

    fn delete(&self, at: EntityAddress) -> impl Future<Output = Result<(), BackendError>> + Send;

    fn get(&self, at: EntityAddress) -> impl Future<Output = Result<AdminEntity, BackendError>> + Send;

    /// Ordered by name. Returns at most `page.top` entities; fewer means that there are no more.
    fn list(
        &self,
        listing: EntityListing,
        page: PageRange,
    ) -> impl Future<Output = Result<Vec<AdminEntity>, BackendError>> + Send;

    /// Adds a rule to a subscription, or replaces it if `replace`.
    fn put_rule(
        &self,
        subscription: EntityAddress,
        rule: RuleDescription,
        replace: bool,
    ) -> impl Future<Output = Result<Arc<CompiledRule>, BackendError>> + Send;

    fn delete_rule(
        &self,
        subscription: EntityAddress,
        name: String,
    ) -> impl Future<Output = Result<(), BackendError>> + Send;

    fn get_rule(
        &self,
        subscription: EntityAddress,
        name: String,
    ) -> impl Future<Output = Result<Arc<CompiledRule>, BackendError>> + Send;

    /// Ordered by name, as in [`list`](Self::list).
    fn list_rules(
        &self,
        subscription: EntityAddress,
        page: PageRange,
    ) -> impl Future<Output = Result<Vec<Arc<CompiledRule>>, BackendError>> + Send;

    /// Advances the clock or arms a fault, for tests.
    fn run_test_command(&self, command: TestCommand) -> impl Future<Output = Result<TestReport, BackendError>> + Send;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntityListing {
    Queues,
    Topics,
    Subscriptions { topic: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    pub skip: usize,
    pub top: usize,
}

/// Why the engine did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Refused(#[from] core::Error),
    #[error("broker is stopping")]
    Stopping,
}
