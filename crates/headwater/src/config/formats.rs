//! Parsers and checks for texts with a fixed format. Pure. Error messages never quote the text, because it may be a secret.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use mongodb::bson::DateTime;
use mongodb::options::ConnectionString as MongoUri;
use pipeline::capture::StartPosition;
use pipeline::publish::{CheckpointInterval, SessionMapping};
use pipeline::signing::MessageKeys;
use servicebus::ConnectionString;

use super::{redact, units};

/// A shorter token could be guessed by anyone who can reach the port.
const MIN_TOKEN_LENGTH: usize = 16;

const MASKED: &str = "its secrets are masked, as in the output of `headwater config print`";

/// Uses the rules of the driver, but not its messages: they may quote the URI, and with it a password.
pub(super) fn check_mongodb_uri(text: &str) -> Result<(), String> {
    let why = |why: &str| Err(format!("is not a MongoDB URI: {why}"));
    if redact::is_masked(text) {
        return why(MASKED);
    }
    let Some(rest) = text.strip_prefix("mongodb://").or_else(|| text.strip_prefix("mongodb+srv://")) else {
        return why("it must start with `mongodb://` or `mongodb+srv://`");
    };
    if MongoUri::parse(text).is_ok() {
        return Ok(());
    }
    let (before, options) = rest.split_once('?').map_or((rest, ""), |(before, options)| (before, options));
    let (user, hosts) = before.rsplit_once('@').map_or(("", before), |(user, hosts)| (user, hosts));
    let hosts = hosts.split('/').next().unwrap_or_default();
    // The driver does not say what is wrong, so look for the usual mistakes, the most common first.
    let encoded = |text: &str| !text.contains(['/', '?', '#', '[', ']', '@']) && text.matches(':').count() <= 1;
    if !encoded(user) || (user.is_empty() && options.contains('@')) {
        return why("its user or password has a character that must be percent-encoded (`@` as `%40`, `/` as `%2F`)");
    }
    if hosts.split(',').any(|host| host.is_empty() || host.starts_with(':')) {
        return why("it has no host");
    }
    // Test each option alone to name the invalid one.
    let alone = |option: &&str| MongoUri::parse(format!("mongodb://host/?{option}")).is_err();
    match options.split('&').find(alone).and_then(|option| option.split('=').next()) {
        Some(name) if !options.is_empty() => why(&format!("its option `{name}` is not valid")),
        Some(_) | None => why("its host, port, user or options are not valid"),
    }
}

pub(super) fn check_connection_string(text: &str) -> Result<(), String> {
    if redact::is_masked(text) {
        return Err(format!("is not a Service Bus connection string: {MASKED}"));
    }
    let refused = |why| format!("is not a Service Bus connection string: {why}");
    ConnectionString::parse(text).map(drop).map_err(refused)
}

/// The token is sent in a header, so it must be printable ASCII.
pub(super) fn check_token(text: &str) -> Result<(), String> {
    let text = if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "has characters that cannot be sent in a header".to_owned()
    } else if text.len() < MIN_TOKEN_LENGTH {
        format!("is {} characters long", text.len())
    } else {
        return Ok(());
    };
    Err(format!("{text}, but must be at least {MIN_TOKEN_LENGTH} printable ASCII characters without spaces"))
}

/// The message never contains a key, only its id.
pub(super) fn check_message_keys(text: &str) -> Result<(), String> {
    MessageKeys::parse(text).map(drop).map_err(|error| error.to_string())
}

pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    DateTime::parse_rfc3339_str(text).ok().map(SystemTime::from)
}

/// The rules of MongoDB on Linux, without the databases of the server itself.
pub(super) fn is_database(text: &str) -> bool {
    let own = ["admin", "config", "local"];
    (1..=63).contains(&text.len()) && !text.contains(['/', '\\', '.', ' ', '"', '$', '\0']) && !own.contains(&text)
}

pub(super) fn is_collection(text: &str) -> bool {
    !text.is_empty() && !text.contains(['$', '\0']) && !text.starts_with("system.") && text.len() <= 200
}

/// Field names separated by dots.
pub(super) fn is_path(text: &str) -> bool {
    text.split('.').all(|name| !name.is_empty() && !name.starts_with('$') && !name.contains('\0'))
}

pub(super) fn is_topic(text: &str) -> bool {
    is_entity(text, 260, ".-_/")
}

pub(super) fn is_namespace(text: &str) -> bool {
    servicebus::check_namespace(text).is_ok()
}

pub(super) fn is_https_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    host.is_some_and(|host| servicebus::check_namespace(host).is_ok())
}

pub(super) fn is_subscription(text: &str) -> bool {
    is_entity(text, 50, ".-_")
}

/// The naming rules of Service Bus.
fn is_entity(text: &str, longest: usize, also: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric();
    (1..=longest).contains(&text.len())
        && text.chars().all(|letter| plain(letter) || also.contains(letter))
        && text.starts_with(plain)
        && text.ends_with(plain)
}

pub(super) fn parse_start(text: &str) -> Option<StartPosition> {
    text.parse().ok()
}

pub(super) fn parse_sessions(text: &str) -> Option<SessionMapping> {
    if text == "aggregate" {
        return Some(SessionMapping::Aggregate);
    }
    let number = text.strip_prefix("buckets(")?.strip_suffix(')')?.trim().parse().ok()?;
    NonZeroU32::new(number).map(SessionMapping::Buckets)
}

pub(super) fn parse_checkpoint(text: &str) -> Option<CheckpointInterval> {
    if text == "each" {
        return Some(CheckpointInterval::Each);
    }
    let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
    units::parse_duration(text).filter(|every| allowed.contains(every)).map(CheckpointInterval::Every)
}

pub(super) fn parse_listen(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

/// Returns the URL without a trailing slash. A user in the URL is refused: the URL is shown, and a password must not be.
pub(super) fn parse_endpoint(text: &str) -> Option<String> {
    let address = text.trim_end_matches('/');
    let rest = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"))?;
    let fits = !rest.is_empty() && !rest.contains(['@', '/', '?', '#', ' ']) && address.parse::<hyper::Uri>().is_ok();
    fits.then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_mongodb_uris_are_explained_without_quoting() {
        for fine in [
            "mongodb://localhost",
            "mongodb://u:p%40ss@a:27017,b:27018/?replicaSet=rs0&authSource=admin",
            "mongodb+srv://cluster.example.net/?retryWrites=true",
            "mongodb://[::1]:27017",
        ] {
            assert_eq!(check_mongodb_uri(fine), Ok(()), "{fine}");
        }
        for (wrong, word) in [
            ("localhost:27017", "must start with"),
            ("mongodb://u:hush/hush@host", "percent-encoded"),
            ("mongodb://u:hu@sh@host", "percent-encoded"),
            ("mongodb://u:hu?sh@host", "percent-encoded"),
            ("mongodb://u:hush@", "has no host"),
            ("mongodb://:27017", "has no host"),
            ("mongodb://u:hush@host/?maxPoolSize=many", "option `maxPoolSize`"),
            ("mongodb://u:hush@host:port", "are not valid"),
        ] {
            let text = check_mongodb_uri(wrong).unwrap_err();
            assert!(text.contains(word) && !text.contains("hush"), "{wrong}: {text}");
        }
    }

    #[test]
    fn names_follow_the_rules_of_the_servers() {
        assert!(is_database("shop_2024") && !is_database("my.shop") && !is_database("local") && !is_database(""));
        assert!(is_collection("events") && is_collection("a.b") && !is_collection("system.views"));
        assert!(is_path("meta.version") && !is_path("$meta") && !is_path("meta..version"));
        assert!(is_topic("shop/events") && !is_topic("my events") && !is_topic("-events"));
        assert!(is_subscription("read-models") && !is_subscription("a/b") && !is_subscription(&"a".repeat(51)));
    }
}
