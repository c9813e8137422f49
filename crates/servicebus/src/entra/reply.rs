//! Reads the replies of token endpoints: the authority, the metadata service of a virtual machine, and the endpoint of App Service and Container Apps.

use std::time::Duration;

use serde_json::Value as Json;

/// A reply is a token of a few kilobytes and some numbers. A longer one is not parsed.
const MAX_REPLY_BYTES: usize = 16 << 10;
/// Entra ID issues tokens for a day at most. A reply that says more is not believed, and no time overflows.
const MAX_LIFETIME: Duration = Duration::from_secs(48 * 3_600);

/// A token, and how long it may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuedToken {
    pub(super) text: String,
    pub(super) lifetime: Duration,
    /// When to replace it, if the issuer says so.
    pub(super) refresh_in: Option<Duration>,
}

/// `now`: time since the Unix epoch, for issuers that name the time of expiry only. `None`: the reply has no token.
pub(super) fn read_token(body: &[u8], now: Duration) -> Option<IssuedToken> {
    let reply = parse(body)?;
    let text = ["access_token", "accessToken"].iter().find_map(|name| reply[*name].as_str())?;
    let lifetime = seconds(&reply["expires_in"])
        .or_else(|| seconds(&reply["expires_on"]).map(|at| at.saturating_sub(now)))
        .filter(|lifetime| !lifetime.is_zero())?;
    if text.is_empty() {
        return None;
    }
    let lifetime = lifetime.min(MAX_LIFETIME);
    let refresh_in = seconds(&reply["refresh_in"]).map(|refresh_in| refresh_in.min(lifetime));
    Some(IssuedToken { text: text.to_owned(), lifetime, refresh_in })
}

fn parse(body: &[u8]) -> Option<Json> {
    let body = Some(body).filter(|body| body.len() <= MAX_REPLY_BYTES)?;
    serde_json::from_slice(body).ok()
}

/// Some issuers write numbers as text.
fn seconds(value: &Json) -> Option<Duration> {
    let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()))?;
    Some(Duration::from_secs(number))
}

/// The reason for a refusal: the error code, and the first line of its description.
pub(super) fn read_refusal(body: &[u8]) -> String {
    const MAX: usize = 300;
    const MAX_CODE: usize = 100;
    let reply = parse(body).unwrap_or_default();
    let code = reply["error"].as_str().or_else(|| reply["error"]["code"].as_str()).unwrap_or("no reason given");
    // Of another program, and for the log: one line without control characters.
    let code: String = code.chars().filter(|letter| !letter.is_control()).take(MAX_CODE).collect();
    let text = reply["error_description"].as_str().or_else(|| reply["error"]["message"].as_str()).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default().chars();
    let line: String = line.filter(|letter| !letter.is_control()).take(MAX).collect();
    if line.is_empty() { code } else { format!("{code}: {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replies_of_all_endpoints_are_read() {
        let now = Duration::from_secs(1_000);
        let token = |seconds, refresh: Option<u64>| {
            let refresh_in = refresh.map(Duration::from_secs);
            Some(IssuedToken { text: "t".into(), lifetime: Duration::from_secs(seconds), refresh_in })
        };
        for (reply, expected) in [
            (r#"{"token_type":"Bearer","expires_in":3599,"access_token":"t"}"#, token(3_599, None)),
            (
                r#"{"access_token":"t","expires_in":"86400","refresh_in":"43200","expires_on":"9"}"#,
                token(86_400, Some(43_200)),
            ),
            (r#"{"access_token":"t","expires_on":"1300","resource":"r"}"#, token(300, None)),
            (r#"{"accessToken":"t","expiresOn":"2026-01-01 00:00:00","expires_on":1300}"#, token(300, None)),
            (r#"{"access_token":"t","expires_on":"900"}"#, None),
            (r#"{"access_token":"t","expires_in":18446744073709551615}"#, token(48 * 3_600, None)),
            (r#"{"access_token":""  ,"expires_in":5}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(read_token(reply.as_bytes(), now), expected, "{reply}");
        }
    }

    #[test]
    fn a_reply_over_16_kib_is_not_parsed() {
        let reply = |padding: usize| {
            format!(r#"{{"access_token":"t","expires_in":60,"error":"e","x":"{}"}}"#, "a".repeat(padding))
        };
        let overhead = reply(0).len();
        let (longest, longer) = (reply(MAX_REPLY_BYTES - overhead), reply(MAX_REPLY_BYTES - overhead + 1));
        assert!(read_token(longest.as_bytes(), Duration::ZERO).is_some());
        assert_eq!(read_token(longer.as_bytes(), Duration::ZERO), None);
        assert_eq!(read_refusal(longest.as_bytes()), "e");
        assert_eq!(read_refusal(longer.as_bytes()), "no reason given");
    }

    #[test]
    fn a_refusal_is_one_line() {
        let reply =
            br#"{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret.\r\nTrace ID: 1"}"#;
        assert_eq!(read_refusal(reply), "invalid_client: AADSTS7000215: Invalid client secret.");
        assert_eq!(read_refusal(b"<html>"), "no reason given");
        let forged = br#"{"error":"a\r\nb","error_description":"c\u001b[2Jd\ne"}"#;
        assert_eq!(read_refusal(forged), "ab: c[2Jd");
    }
}
