//! Entity names and the paths by which clients address entities.
//!
//! Paths keep their case and are compared without it. The connection strips scheme, host, percent-encoding and
//! `$management`; the core gets `orders`, `orders/Subscriptions/audit`, or either with `/$DeadLetterQueue`.

use super::error::Error;
use super::id::Subqueue;

const MAX_PATH: usize = 260;
const MAX_SUBSCRIPTION: usize = 50;
const SUBSCRIPTIONS: &str = "/subscriptions/";
const DEAD_LETTER: &str = "/$deadletterqueue";
const TRANSFER_DEAD_LETTER: &str = "/$transfer/$deadletterqueue";

/// The form in which paths are compared: lower case, without outer slashes.
pub(super) fn normalize(path: &str) -> Box<str> {
    path.trim_matches('/').to_lowercase().into()
}

/// Joins a topic's path and a subscription's name.
pub(super) fn subscription_path(topic: &str, name: &str) -> Box<str> {
    format!("{topic}/Subscriptions/{name}").into()
}

/// Splits a subscription's path into topic and name.
pub(super) fn split_subscription(path: &str) -> Result<(&str, &str), Error> {
    let at = path.to_ascii_lowercase().rfind(SUBSCRIPTIONS);
    let at = at.ok_or_else(|| Error::invalid("path", "must be `topic/Subscriptions/name` for a subscription"))?;
    Ok((&path[..at], &path[at + SUBSCRIPTIONS.len()..]))
}

/// Splits a receiver's address into the entity's normalized path and the subqueue.
pub(super) fn split_subqueue(address: &str) -> (Box<str>, Subqueue) {
    let folded = normalize(address);
    if let Some(entity) = folded.strip_suffix(TRANSFER_DEAD_LETTER) {
        return (entity.into(), Subqueue::TransferDeadLetter);
    }
    match folded.strip_suffix(DEAD_LETTER) {
        Some(entity) => (entity.into(), Subqueue::DeadLetter),
        None => (folded, Subqueue::Main),
    }
}

pub(super) fn check_entity(path: &str) -> Result<(), Error> {
    let invalid = |rule: &str| Err(Error::invalid("path", rule));
    if path.is_empty() || path.len() > MAX_PATH {
        return invalid("must have 1 to 260 characters");
    }
    if path.starts_with('/') || path.ends_with('/') {
        return invalid("must not begin or end with a slash");
    }
    if !path.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '~')) {
        return invalid("may hold letters, digits, '.', '-', '_', '~' and '/'");
    }
    if format!("{}/", path.to_lowercase()).contains(SUBSCRIPTIONS) {
        return invalid("must not contain '/Subscriptions/'");
    }
    Ok(())
}

pub(super) fn check_subscription(name: &str) -> Result<(), Error> {
    let invalid = |rule: &str| Err(Error::invalid("subscription name", rule));
    if name.is_empty() || name.len() > MAX_SUBSCRIPTION {
        return invalid("must have 1 to 50 characters");
    }
    if !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '$')) {
        return invalid("may hold letters, digits, '.', '-', '_' and '$'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_without_case_or_outer_slashes() {
        assert_eq!(&*normalize("/Orders/Subscriptions/Audit"), "orders/subscriptions/audit");
    }

    #[test]
    fn the_dead_letter_suffix_selects_the_other_subqueue() {
        assert_eq!(split_subqueue("Orders/$DeadLetterQueue"), ("orders".into(), Subqueue::DeadLetter));
        assert_eq!(split_subqueue("orders"), ("orders".into(), Subqueue::Main));
        let transfer = ("orders".into(), Subqueue::TransferDeadLetter);
        assert_eq!(split_subqueue("orders/$Transfer/$DeadLetterQueue"), transfer);
    }

    #[test]
    fn entity_names_are_checked() {
        for good in ["orders", "a/b-c_d.e", "UPPER", "9"] {
            assert!(check_entity(good).is_ok(), "{good}");
        }
        let long = "x".repeat(261);
        for bad in ["", "/a", "a/", "a b", "a?b", "t/Subscriptions/s", "t/subscriptions", "$cbs", &long] {
            assert!(check_entity(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn subscription_names_are_checked() {
        assert!(check_subscription("read-models").is_ok());
        for bad in ["", "a/b", &"x".repeat(51)] {
            assert!(check_subscription(bad).is_err(), "{bad}");
        }
    }
}
