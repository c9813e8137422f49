//! When a server is not there: said in a line, and what to do about it.

use std::{fmt, io};

use mongo_error::DriverError;
use servicebus::administration;

/// What was being done, and what to do if it fails: where whoever fails knows better than a table.
#[derive(Debug)]
pub(crate) struct AdvisedContext {
    doing: String,
    advice: &'static str,
}

impl AdvisedContext {
    pub(crate) fn new(doing: impl Into<String>, advice: &'static str) -> Self {
        Self { doing: doing.into(), advice }
    }
}

impl fmt::Display for AdvisedContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl std::error::Error for AdvisedContext {}

/// What the driver says of servers it could not find, without the inside of it.
pub(crate) fn describe_driver_error(error: &DriverError) -> String {
    shorten(&error.to_string())
}

fn shorten(text: &str) -> String {
    let Some((_, servers)) = text.split_once("Topology:") else { return text.to_owned() };
    let told = servers.split("Address: ").skip(1).map(|server| {
        let address = server.split([',', ' ', '}']).next().unwrap_or_default();
        let reason = server.split_once("Kind: ").and_then(|(_, reason)| reason.split(", labels").next());
        reason.map_or_else(|| address.to_owned(), |reason| format!("{address}: {reason}"))
    });
    let told: Vec<_> = told.collect();
    if told.is_empty() { text.to_owned() } else { format!("no server was found that fits ({})", told.join("; ")) }
}

/// One cause of an error, as people read it.
pub(crate) fn describe_cause(cause: &(dyn std::error::Error + 'static)) -> String {
    cause.downcast_ref::<DriverError>().map_or_else(|| shorten(&cause.to_string()), describe_driver_error)
}

/// What to do, where it is a server that was not there, or a port that is taken.
pub(crate) fn advice_for(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(AdvisedContext { advice, .. }) = error.downcast_ref() {
        return Some(advice);
    }
    let mongodb = |cause: &(dyn std::error::Error + 'static)| cause.to_string().contains("Server selection timeout");
    let bus = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<administration::Error>();
        matches!(error, Some(administration::Error::Unreachable { .. } | administration::Error::Timeout { .. }))
    };
    if error.chain().any(is_port_taken) {
        let pod = error.chain().any(|cause| cause.is::<admin::Error>());
        return Some(if pod { ANOTHER_ADMIN_PORT } else { ANOTHER_PORT });
    }
    if error.chain().any(mongodb) {
        return Some(
            "is MongoDB there, and is its URI right? `headwater check` looks at each, `headwater config print` tells what is in force",
        );
    }
    let advice =
        "is the bus there, and is `service_bus.connection_string` right? `headwater broker` is one to try with";
    error.chain().any(bus).then_some(advice)
}

const ANOTHER_ADMIN_PORT: &str =
    "another process has that port; set `admin.listen` to another one, or to port 0 for any that is free";
const ANOTHER_PORT: &str =
    "another process has that port; pass another one with `--listen`, or port 0 for any that is free";

fn is_port_taken(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_away_are_named_with_the_reason_and_nothing_else() {
        let said = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {\"RetryableError\"}, source: None, server response: None }, { Address: b:2, Type: RsSecondary } ] }";
        let told = "no server was found that fits (a:1: I/O error: Connection refused (os error 111); b:2)";
        assert_eq!(shorten(said), told);
        assert_eq!(shorten("MongoDB returned error 13 (Unauthorized)"), "MongoDB returned error 13 (Unauthorized)");
    }
}
