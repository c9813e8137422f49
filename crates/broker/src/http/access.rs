//! Who may administer: everyone, unless a check is configured.

/// Decides whether a request's `Authorization` allows it to manage `resource`, the entity's path.
pub trait TokenCheck: Send + Sync {
    fn may_manage(&self, token: &str, resource: &str) -> bool;
}
