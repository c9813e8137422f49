//! Parses link addresses. Clients write them in many forms; the reply echoes theirs byte for byte.

/// What a link is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkAddress {
    /// `$cbs`: the node that takes tokens.
    Cbs,
    /// `<entity>/$management`: the node that takes requests about an entity.
    Management(String),
    /// A queue, topic or subscription, or a dead-letter queue, by its path in the core.
    Entity(String),
}

const MANAGEMENT: &str = "/$management";

impl LinkAddress {
    /// Accepts `topic`, `/topic`, `amqps://host:port/topic` and `sb://…`, percent-encoded or not.
    pub(super) fn parse(text: &str) -> Self {
        let path = match text.split_once("://") {
            Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
            None => text,
        };
        let path = percent_decode(path.trim_matches('/'));
        if path.eq_ignore_ascii_case("$cbs") {
            return Self::Cbs;
        }
        let entity = path.len().checked_sub(MANAGEMENT.len()).filter(|at| path.is_char_boundary(*at));
        match entity {
            Some(at) if path[at..].eq_ignore_ascii_case(MANAGEMENT) => Self::Management(path[..at].to_owned()),
            _ => Self::Entity(path),
        }
    }
}

/// Percent-decodes a path. An invalid escape stays as it is; a result that is not UTF-8 leaves the path unchanged.
fn percent_decode(path: &str) -> String {
    if !path.contains('%') {
        return path.to_owned();
    }
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = (bytes[at] == b'%').then(|| path.get(at + 1..at + 3)).flatten();
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::LinkAddress;

    #[test]
    fn every_form_of_an_address_is_parsed() {
        let entity = |path: &str| LinkAddress::Entity(path.to_owned());
        let management = |path: &str| LinkAddress::Management(path.to_owned());
        let cases = [
            ("orders", entity("orders")),
            ("/orders", entity("orders")),
            ("amqps://localhost/orders", entity("orders")),
            ("sb://127.0.0.1:5672/a/b", entity("a/b")),
            ("t/Subscriptions/s", entity("t/Subscriptions/s")),
            ("/t/Subscriptions/s%2Ft", entity("t/Subscriptions/s/t")),
            ("orders/$DeadLetterQueue", entity("orders/$DeadLetterQueue")),
            ("orders/$management", management("orders")),
            ("amqps://h/orders/$DeadLetterQueue/$management", management("orders/$DeadLetterQueue")),
            ("ORDERS/$MANAGEMENT", management("ORDERS")),
            ("$cbs", LinkAddress::Cbs),
            ("/$cbs", LinkAddress::Cbs),
            ("amqps://h:5671/$cbs", LinkAddress::Cbs),
            ("amqps://h", entity("")),
            ("50%", entity("50%")),
            ("é/$management", management("é")),
        ];
        for (text, expected) in cases {
            assert_eq!(LinkAddress::parse(text), expected, "{text}");
        }
    }
}
