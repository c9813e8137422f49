//! When a server is not there: said in a line, and what to do about it.

use lease::DriverError;
use servicebus::administration;

/// What the driver says of servers it could not find, without the inside of it.
pub(crate) fn plainly(error: &DriverError) -> String {
    shortened(&error.to_string())
}

fn shortened(text: &str) -> String {
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
pub(crate) fn cause(cause: &(dyn std::error::Error + 'static)) -> String {
    cause.downcast_ref::<DriverError>().map_or_else(|| shortened(&cause.to_string()), plainly)
}

/// What to do, where it is a server that was not there.
pub(crate) fn for_error(error: &anyhow::Error) -> Option<&'static str> {
    let mongodb = |cause: &(dyn std::error::Error + 'static)| cause.to_string().contains("Server selection timeout");
    let bus = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<administration::Error>();
        matches!(error, Some(administration::Error::Unreachable { .. } | administration::Error::TooLate { .. }))
    };
    if error.chain().any(mongodb) {
        return Some(
            "is MongoDB there, and is its URI right? `headwater check` looks at each, `headwater config print` tells what is in force",
        );
    }
    let advice =
        "is the bus there, and is `service_bus.connection_string` right? `headwater broker` is one to try with";
    error.chain().any(bus).then_some(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_away_are_named_with_the_reason_and_nothing_else() {
        let said = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {\"RetryableError\"}, source: None, server response: None }, { Address: b:2, Type: RsSecondary } ] }";
        let told = "no server was found that fits (a:1: I/O error: Connection refused (os error 111); b:2)";
        assert_eq!(shortened(said), told);
        assert_eq!(
            shortened("the server answered with error 13 (Unauthorized)"),
            "the server answered with error 13 (Unauthorized)"
        );
    }
}
