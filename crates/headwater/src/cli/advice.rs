//! Advice for errors that users meet often: an unreachable server, a port that is taken.

use std::{fmt, io};

use mongo_error::DriverError;
use servicebus::administration;

/// Error context with its own advice, for callers that know more than the table below.
#[derive(Debug)]
pub(crate) struct ErrorWithAdvice {
    message: String,
    advice: &'static str,
}

impl ErrorWithAdvice {
    pub(crate) fn new(message: impl Into<String>, advice: &'static str) -> Self {
        Self { message: message.into(), advice }
    }
}

impl fmt::Display for ErrorWithAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ErrorWithAdvice {}

/// The error of the driver, without the internals of its server selection.
pub(crate) fn describe_driver_error(error: &DriverError) -> String {
    shorten(&error.to_string())
}

fn shorten(text: &str) -> String {
    let Some((_, servers)) = text.split_once("Topology:") else { return text.to_owned() };
    let described = servers.split("Address: ").skip(1).map(|server| {
        let address = server.split([',', ' ', '}']).next().unwrap_or_default();
        let reason = server.split_once("Kind: ").and_then(|(_, reason)| reason.split(", labels").next());
        reason.map_or_else(|| address.to_owned(), |reason| format!("{address}: {reason}"))
    });
    let described: Vec<_> = described.collect();
    if described.is_empty() { text.to_owned() } else { format!("no suitable server found ({})", described.join("; ")) }
}

/// One cause of an error, for users.
pub(crate) fn describe_cause(cause: &(dyn std::error::Error + 'static)) -> String {
    cause.downcast_ref::<DriverError>().map_or_else(|| shorten(&cause.to_string()), describe_driver_error)
}

/// Advice if a server was unreachable or a port was taken.
pub(crate) fn advice_for(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(ErrorWithAdvice { advice, .. }) = error.downcast_ref() {
        return Some(advice);
    }
    // The driver has no error kind for this, only the text.
    let mongodb = |cause: &(dyn std::error::Error + 'static)| cause.to_string().contains("Server selection timeout");
    let bus = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<administration::Error>();
        matches!(error, Some(administration::Error::Unreachable { .. } | administration::Error::Timeout { .. }))
    };
    if error.chain().any(is_port_taken) {
        // The pod and the broker are configured differently: a key or a flag.
        let pod = error.chain().any(|cause| cause.is::<admin::Error>());
        return Some(if pod { ANOTHER_ADMIN_PORT } else { ANOTHER_PORT });
    }
    if error.chain().any(mongodb) {
        return Some(
            "check that MongoDB is running and its URI is correct: `headwater check` tests each server, `headwater config print` shows the settings in use",
        );
    }
    let advice = "check that Service Bus is reachable and `service_bus.connection_string` is correct; `headwater broker` runs a local broker";
    error.chain().any(bus).then_some(advice)
}

const ANOTHER_ADMIN_PORT: &str =
    "another process uses that port; set `admin.listen` to another port, or to port 0 for any free port";
const ANOTHER_PORT: &str =
    "another process uses that port; use another port with `--listen`, or port 0 for any free port";

fn is_port_taken(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_servers_are_named_with_the_reason() {
        let error = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {\"RetryableError\"}, source: None, server response: None }, { Address: b:2, Type: RsSecondary } ] }";
        let expected = "no suitable server found (a:1: I/O error: Connection refused (os error 111); b:2)";
        assert_eq!(shorten(error), expected);
        assert_eq!(shorten("MongoDB returned error 13 (Unauthorized)"), "MongoDB returned error 13 (Unauthorized)");
    }
}
