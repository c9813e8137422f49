//! Failpoints: defects that a test enables in a broker process, to prove that the checkers find them.
//!
//! Compiled only with debug assertions; a release build ignores the environment variable.

/// Disables the mechanism behind one guarantee of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failpoint {
    /// Replies leave before the journal is on stable storage.
    ReplyBeforeSync,
    /// Messages with a known id are stored again.
    NoDuplicateDetection,
}

impl Failpoint {
    pub const ALL: [Self; 2] = [Self::ReplyBeforeSync, Self::NoDuplicateDetection];

    /// The environment variable that enables one by its [`Debug`] name.
    pub const VARIABLE: &'static str = "HEADWATER_BROKER_FAILPOINT";

    #[cfg(debug_assertions)]
    pub(crate) fn is_enabled(self) -> bool {
        static ENABLED: std::sync::OnceLock<Option<Failpoint>> = std::sync::OnceLock::new();
        let enabled = ENABLED.get_or_init(|| {
            let name = std::env::var(Self::VARIABLE).ok()?;
            let found = Self::ALL.into_iter().find(|failpoint| format!("{failpoint:?}") == name);
            assert!(found.is_some(), "unknown failpoint `{name}`");
            found
        });
        *enabled == Some(self)
    }

    #[cfg(not(debug_assertions))]
    pub(crate) const fn is_enabled(self) -> bool {
        false
    }
}
