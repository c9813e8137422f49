//! Verifies tokens: `SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<key name>`. The signature is
//! HMAC-SHA256 over the encoded resource, a line feed and the expiry.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::keys::AccessKey;
use super::{AccessGrant, AccessKeys, EntraIssuer, is_below, normalize};
use crate::atom::AuthorizationRule;
use crate::core::Timestamp;

/// Why a token is refused. The text contains nothing of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("MalformedToken: the token is neither a SharedAccessSignature nor a JWT of an accepted issuer")]
    Malformed,
    #[error("MalformedToken: the token is longer than 16 KiB")]
    TooLong,
    #[error("ExpiredToken: the token is expired")]
    Expired,
    #[error("InvalidAudience: the token is for another resource")]
    WrongResource,
    #[error("InvalidSignature: the token has an invalid signature")]
    Signature,
    #[error("InvalidIssuer: the token is from another issuer")]
    Issuer,
    #[error("TokenNotYetValid: the token is not valid yet")]
    NotYetValid,
    #[error("Unauthorized: no role assignment gives this identity a right on the resource")]
    NoRole,
}

/// Tokens of Entra ID have a few kilobytes. Longer ones are refused before they are parsed.
const MAX_TOKEN_BYTES: usize = 16 << 10;
const PREFIX: &str = "SharedAccessSignature ";
const MANAGEMENT: &str = "/$management";

struct TokenFields<'a> {
    /// As it was signed: percent-encoded.
    resource: &'a str,
    signature: Vec<u8>,
    expiry: &'a str,
    key_name: String,
}

impl AccessKeys {
    /// Whether a token gives any right on a path.
    pub fn accepts(&self, token: &str, path: &str, now: Timestamp) -> bool {
        self.verify(token, path, now, &[]).is_ok()
    }

    /// Verifies a token for a path; `rules` are those of the entities at the path, by entity.
    pub(crate) fn verify(
        &self,
        token: &str,
        path: &str,
        now: Timestamp,
        rules: &[(String, AuthorizationRule)],
    ) -> Result<AccessGrant, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let path = normalize(path);
        if let Some(issuer) = self.entra.as_ref().filter(|_| EntraIssuer::is_jwt(token)) {
            return issuer.verify(token, &path, now);
        }
        let fields = TokenFields::parse(token)?;
        let resource = percent_decode(fields.resource).ok_or(TokenError::Malformed)?;
        let resource = normalize(path_of(&resource));
        // Clients sign the address of the node that they open, and the node has no rights of its own.
        if !is_below(resource.strip_suffix(MANAGEMENT).unwrap_or(&resource), &path) {
            return Err(TokenError::WrongResource);
        }
        let stored = rules.iter().filter_map(|(entity, rule)| AccessKey::from_rule(rule, entity));
        let stored: Vec<_> = stored.filter(|key| key.name == fields.key_name).collect();
        let candidates = self.find(&fields.key_name, &path).chain(&stored);
        let signers = candidates.filter(|key| key.values().any(|value| fields.is_signed_by(value)));
        // An unknown key name gets the same answer as a wrong key: names are not to be found by trying.
        let rights = signers.map(|key| key.rights.clone()).next().ok_or(TokenError::Signature)?;
        let seconds: u64 = fields.expiry.parse().map_err(|_| TokenError::Malformed)?;
        let expires_at = Timestamp(seconds.saturating_mul(1_000));
        if expires_at <= now {
            return Err(TokenError::Expired);
        }
        Ok(AccessGrant { scope: path, rights, expires_at })
    }
}

impl<'a> TokenFields<'a> {
    fn parse(token: &'a str) -> Result<Self, TokenError> {
        let fields = token.trim().strip_prefix(PREFIX).ok_or(TokenError::Malformed)?;
        let find = |name: &str| {
            let mut pairs = fields.split('&').filter_map(|field| field.split_once('='));
            pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let (resource, expiry) = find("sr").zip(find("se")).ok_or(TokenError::Malformed)?;
        let signature = find("sig").and_then(percent_decode).and_then(|text| BASE64_STANDARD.decode(text).ok());
        let key_name = find("skn").and_then(percent_decode);
        let (signature, key_name) = signature.zip(key_name).ok_or(TokenError::Malformed)?;
        Ok(Self { resource, signature, expiry, key_name })
    }

    /// Compares in constant time.
    fn is_signed_by(&self, key: &str) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length");
        mac.update(self.resource.as_bytes());
        mac.update(b"\n");
        mac.update(self.expiry.as_bytes());
        mac.verify_slice(&self.signature).is_ok()
    }
}

/// The path of a URI. The host is not compared: a broker has many names.
fn path_of(uri: &str) -> &str {
    match uri.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => uri,
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(match byte {
            b'%' => {
                let (digits, tail) = tail.split_at_checked(2)?;
                rest = tail;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atom::AccessRight;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);
    /// Made with Python: hmac.new(b"secret", b"sb%3A%2F%2Fns%2Forders\n1700000600", sha256).
    const TOKEN: &str = "SharedAccessSignature sr=sb%3A%2F%2Fns%2Forders&sig=B6KXkSnbT%2B7IKQ6hHTuDK06fBngbDPY6rshMJy6fBlc%3D&se=1700000600&skn=root";

    fn keys() -> AccessKeys {
        AccessKeys::parse(r#"{"keys": [{"name": "root", "key": "secret", "rights": ["Send"]}]}"#).unwrap()
    }

    #[test]
    fn a_token_of_another_program_is_verified() {
        let grant = keys().verify(TOKEN, "orders", NOW, &[]).unwrap();
        let expected = AccessGrant {
            scope: "orders".into(),
            rights: vec![AccessRight::Send],
            expires_at: Timestamp(1_700_000_600_000),
        };
        assert_eq!(grant, expected);
        assert_eq!(keys().verify(TOKEN, "orders/$DeadLetterQueue", NOW, &[]).unwrap().scope, "orders/$deadletterqueue");
    }

    #[test]
    fn a_token_is_for_all_paths_below_its_resource() {
        // As in the service. The key must still apply to the entity: that of the queue `orders` does not apply to the queue `orders/x`.
        assert_eq!(keys().verify(TOKEN, "orders/x", NOW, &[]).unwrap().scope, "orders/x");
        let of_orders = r#"{"keys": [{"name": "root", "key": "secret", "rights": ["Send"], "entity": "orders"}]}"#;
        let of_orders = AccessKeys::parse(of_orders).unwrap();
        assert!(of_orders.verify(TOKEN, "orders/subscriptions/s", NOW, &[]).is_ok());
        assert_eq!(of_orders.verify(TOKEN, "orders/x", NOW, &[]), Err(TokenError::Signature));
    }

    #[test]
    fn a_token_for_the_management_node_is_for_its_entity() {
        // Made with Python: hmac.new(b"secret", b"sb%3A%2F%2Fns%2Forders%2F%24management\n1700000600", sha256).
        let token = "SharedAccessSignature sr=sb%3A%2F%2Fns%2Forders%2F%24management&sig=WLjsrrrXGQ1J%2B0zHZo5klONWSU0fAjEvnjt63rTaMCI%3D&se=1700000600&skn=root";
        assert_eq!(keys().verify(token, "orders", NOW, &[]).unwrap().scope, "orders");
        assert_eq!(keys().verify(token, "other", NOW, &[]), Err(TokenError::WrongResource));
    }

    #[test]
    fn wrong_tokens_are_told_apart() {
        let verify = |token: &str, path: &str, now| keys().verify(token, path, now, &[]).unwrap_err();
        assert_eq!(verify(TOKEN, "orders", Timestamp(1_700_000_600_000)), TokenError::Expired);
        assert_eq!(verify(TOKEN, "other", NOW), TokenError::WrongResource);
        assert_eq!(verify(&TOKEN.replace("skn=root", "skn=admin"), "orders", NOW), TokenError::Signature);
        assert_eq!(verify(&TOKEN.replace("se=1700000600", "se=1800000000"), "orders", NOW), TokenError::Signature);
        for malformed in ["", "Bearer x", "SharedAccessSignature sr=a", &TOKEN.replace("sig=", "sig=%zz")] {
            assert_eq!(verify(malformed, "orders", NOW), TokenError::Malformed, "{malformed}");
        }
    }

    #[test]
    fn a_token_over_16_kib_is_refused_before_it_is_parsed() {
        // Valid but for its length: the last field is not read.
        let token = |length: usize| format!("{TOKEN}&x={}", "a".repeat(length - TOKEN.len() - 3));
        assert!(keys().verify(&token(MAX_TOKEN_BYTES), "orders", NOW, &[]).is_ok());
        let refused = keys().verify(&token(MAX_TOKEN_BYTES + 1), "orders", NOW, &[]);
        assert_eq!(refused, Err(TokenError::TooLong));
    }

    #[test]
    fn a_rule_of_the_entity_signs_tokens_too() {
        let rule = AuthorizationRule {
            key_name: Some("root".into()),
            primary_key: Some("secret".into()),
            rights: vec![AccessRight::Listen],
            ..AuthorizationRule::default()
        };
        let others = AccessKeys::parse(r#"{"keys": [{"name": "x", "key": "y", "rights": ["Send"]}]}"#).unwrap();
        assert_eq!(others.verify(TOKEN, "orders", NOW, &[]), Err(TokenError::Signature));
        let grant = others.verify(TOKEN, "orders", NOW, &[("orders".into(), rule)]).unwrap();
        assert_eq!(grant.rights, [AccessRight::Listen]);
    }
}
