//! Masks the credentials in URIs and connection strings, so that servers and options can be shown.
//!
//! Masks everything that is not known to be harmless: an option that this code does not know may hold a password.

pub(super) const MASK: &str = "***";

/// Options of a MongoDB URI without secrets. Options that end with `MS` are durations and are shown too.
const OPTIONS: [&str; 19] = [
    "appname",
    "authmechanism",
    "authsource",
    "compressors",
    "directconnection",
    "journal",
    "loadbalanced",
    "maxconnecting",
    "maxpoolsize",
    "minpoolsize",
    "readconcernlevel",
    "readpreference",
    "replicaset",
    "retryreads",
    "retrywrites",
    "srvmaxhosts",
    "ssl",
    "tls",
    "w",
];
/// Parts of a connection string without secrets.
const PARTS: [&str; 4] = ["endpoint", "entitypath", "sharedaccesskeyname", "usedevelopmentemulator"];

pub(super) fn redact_mongodb_uri(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://").filter(|(scheme, _)| scheme.starts_with("mongodb")) else {
        return MASK.to_owned();
    };
    let (before, options) = rest.split_once('?').unwrap_or((rest, ""));
    if options.contains('@') {
        // An unencoded `@`: it is unclear where the password ends, so mask everything.
        return MASK.to_owned();
    }
    let host = match before.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{host}"),
        None => before.to_owned(),
    };
    let options: Vec<_> = options.split('&').filter(|option| !option.is_empty()).map(redact_option).collect();
    let options = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
    format!("{scheme}://{host}{options}")
}

/// Whether a value was copied from masked output. A pod that used it would fail to authenticate.
pub(super) fn is_masked(text: &str) -> bool {
    let user = text.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(user, _)| user);
    user == Some(MASK)
        || text.split([';', '&', '?']).any(|part| part.split_once('=').is_some_and(|(_, value)| value == MASK))
}

fn redact_option(option: &str) -> String {
    let Some((name, _)) = option.split_once('=') else { return MASK.to_owned() };
    let known = name.to_ascii_lowercase();
    // Names of options are case-insensitive for the driver.
    let harmless = OPTIONS.contains(&&*known) || known.ends_with("ms");
    if harmless { option.to_owned() } else { format!("{name}={MASK}") }
}

pub(super) fn redact_connection_string(text: &str) -> String {
    let part = |part: &str| match part.split_once('=') {
        Some((name, _)) if PARTS.contains(&&*name.trim().to_ascii_lowercase()) => part.to_owned(),
        Some((name, _)) => format!("{name}={MASK}"),
        None if part.is_empty() => String::new(),
        None => MASK.to_owned(),
    };
    text.split(';').map(part).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_uri_keeps_hosts_and_options() {
        for (uri, shown) in [
            ("mongodb://localhost", "mongodb://localhost"),
            ("mongodb://me:pass@a:1,b:2/db?replicaSet=rs0", "mongodb://***@a:1,b:2/db?replicaSet=rs0"),
            ("mongodb+srv://me@cluster.example/?w=majority", "mongodb+srv://***@cluster.example/?w=majority"),
            (
                "mongodb://a/?tlsCertificateKeyFilePassword=pass&connectTimeoutMS=5",
                "mongodb://a/?tlsCertificateKeyFilePassword=***&connectTimeoutMS=5",
            ),
            ("mongodb://a/?authMechanismProperties=AWS_SESSION_TOKEN:pass", "mongodb://a/?authMechanismProperties=***"),
            // The driver refuses these URIs; they are masked all the same.
            ("mongodb://me:p@ss@a/", "mongodb://***@a/"),
            ("mongodb://me:pass?word@a/", "***"),
            ("mongodb://me:pa/ss@a/db", "mongodb://***@a/db"),
            ("pass", "***"),
        ] {
            assert_eq!(redact_mongodb_uri(uri), shown);
            assert!(!is_masked(uri), "{uri}");
            assert_eq!(is_masked(shown), shown.contains("***@") || shown.contains("=***"), "{shown}");
        }
    }

    #[test]
    fn a_masked_connection_string_keeps_endpoint_and_key_name() {
        let text = "Endpoint=sb://shop.example/;SharedAccessKeyName=pods;SharedAccessKey=pass=;EntityPath=events";
        let shown = "Endpoint=sb://shop.example/;SharedAccessKeyName=pods;SharedAccessKey=***;EntityPath=events";
        assert_eq!(redact_connection_string(text), shown);
        assert!(is_masked(shown) && !is_masked(text));
        assert_eq!(redact_connection_string("SharedAccessSignature=pass;pass;"), "SharedAccessSignature=***;***;");
    }
}
