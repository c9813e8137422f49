//! Tokens of Entra ID: JWTs that an issuer signs (RS256), and the rights that its identities have here.
//!
//! The keys of the issuer are read from a file, never from the network. An assignment gives rights to an identity: one of the claims `oid`, `appid`, `azp`,
//! `sub` or `roles` must have its value.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde::Deserialize;
use serde_json::Value as Json;

use super::{AccessGrant, TokenError, is_of_entity, normalize};
use crate::atom::AccessRight;
use crate::core::Timestamp;

/// The audience of tokens for Service Bus.
const AUDIENCE: &str = "https://servicebus.azure.net";
/// Clocks may differ by this much before a token counts as not valid yet, as in the libraries of the issuer.
const CLOCK_SKEW_SECONDS: u64 = 300;
const IDENTITY_CLAIMS: [&str; 5] = ["oid", "appid", "azp", "sub", "roles"];

/// An issuer whose tokens are accepted.
#[derive(Clone, PartialEq, Eq)]
pub struct EntraIssuer {
    issuer: String,
    audience: String,
    keys: Vec<SigningKey>,
    assignments: Vec<RoleAssignment>,
}

#[derive(Clone, PartialEq, Eq)]
struct SigningKey {
    id: String,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

/// The rights of one identity.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RoleAssignment {
    principal: String,
    rights: Vec<AccessRight>,
    /// Only for this entity; `None`: for all.
    #[serde(default)]
    entity: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum IssuerFileError {
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "`{}`: expected `{{\"issuer\": …, \"jwks\": FILE, \"assignments\": [{{\"principal\": …, \"rights\": [\"Send\", \"Listen\", \"Manage\"]}}]}}`",
        path.display()
    )]
    Malformed {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("`{}` contains no RSA key with `kid`, `n` and `e`", path.display())]
    NoKey { path: PathBuf },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IssuerFile {
    issuer: String,
    #[serde(default)]
    audience: Option<String>,
    /// A JSON Web Key Set, relative to this file.
    jwks: PathBuf,
    assignments: Vec<RoleAssignment>,
}

impl fmt::Debug for EntraIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntraIssuer")
            .field("issuer", &self.issuer)
            .field("assignments", &self.assignments)
            .finish_non_exhaustive()
    }
}

impl EntraIssuer {
    /// Reads the file of an issuer, and its keys.
    pub fn load(file: &Path) -> Result<Self, IssuerFileError> {
        let IssuerFile { issuer, audience, jwks, assignments } = parse(file, &read(file)?)?;
        let jwks = file.parent().unwrap_or(Path::new("")).join(jwks);
        let set: Json = parse(&jwks, &read(&jwks)?)?;
        let keys: Vec<_> = set["keys"].as_array().into_iter().flatten().filter_map(SigningKey::read).collect();
        if keys.is_empty() {
            return Err(IssuerFileError::NoKey { path: jwks });
        }
        Ok(Self { issuer, audience: audience.unwrap_or_else(|| AUDIENCE.to_owned()), keys, assignments })
    }

    /// True for a token that is not a `SharedAccessSignature` but could be a JWT.
    pub(super) fn is_jwt(token: &str) -> bool {
        strip_bearer(token).split('.').count() == 3 && !token.contains('=')
    }

    /// Verifies a token for a normalized path.
    pub(super) fn verify(&self, token: &str, path: &str, now: Timestamp) -> Result<AccessGrant, TokenError> {
        let token = strip_bearer(token);
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = (decode_json(header)?, decode_json(claims)?);
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed)?;
        let key = self.keys.iter().find(|key| header["kid"] == key.id.as_str() && header["alg"] == "RS256");
        let key = key.ok_or(TokenError::Signature)?;
        let public = RsaPublicKeyComponents { n: &key.modulus, e: &key.exponent };
        let verified = public.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature);
        verified.map_err(|_| TokenError::Signature)?;
        self.check_claims(&claims, path, now)
    }

    fn check_claims(&self, claims: &Json, path: &str, now: Timestamp) -> Result<AccessGrant, TokenError> {
        let audience = claims["aud"].as_str().unwrap_or_default();
        if claims["iss"] != self.issuer.as_str() {
            return Err(TokenError::Issuer);
        }
        if audience.trim_end_matches('/') != self.audience.trim_end_matches('/') {
            return Err(TokenError::WrongResource);
        }
        let time = |name: &str| claims[name].as_u64().map(|seconds| seconds.saturating_mul(1_000));
        let expires_at = Timestamp(time("exp").ok_or(TokenError::Malformed)?);
        if expires_at <= now {
            return Err(TokenError::Expired);
        }
        if time("nbf").is_some_and(|from| from > now.0.saturating_add(CLOCK_SKEW_SECONDS * 1_000)) {
            return Err(TokenError::NotYetValid);
        }
        let rights = self.rights_of(claims, path);
        if rights.is_empty() {
            return Err(TokenError::NoRole);
        }
        Ok(AccessGrant { scope: path.to_owned(), rights, expires_at })
    }

    fn rights_of(&self, claims: &Json, path: &str) -> Vec<AccessRight> {
        let is_identity = |principal: &str| {
            IDENTITY_CLAIMS.iter().any(|name| match &claims[*name] {
                Json::Array(values) => values.iter().any(|value| *value == principal),
                value => *value == principal,
            })
        };
        let covers_path = |entity: Option<&str>| is_of_entity(&entity.map(normalize).unwrap_or_default(), path);
        let own =
            self.assignments.iter().filter(|one| is_identity(&one.principal) && covers_path(one.entity.as_deref()));
        own.flat_map(|one| one.rights.iter().copied()).collect()
    }
}

impl SigningKey {
    /// `None` for a key of another kind.
    fn read(key: &Json) -> Option<Self> {
        let bytes = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(key[name].as_str()?).ok();
        let is_rsa = key["kty"] == "RSA";
        is_rsa.then_some(())?;
        Some(Self { id: key["kid"].as_str()?.to_owned(), modulus: bytes("n")?, exponent: bytes("e")? })
    }
}

fn strip_bearer(token: &str) -> &str {
    let token = token.trim();
    token.strip_prefix("Bearer ").unwrap_or(token).trim()
}

fn decode_json(part: &str) -> Result<Json, TokenError> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

fn read(path: &Path) -> Result<String, IssuerFileError> {
    std::fs::read_to_string(path).map_err(|source| IssuerFileError::Read { path: path.to_owned(), source })
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path, text: &str) -> Result<T, IssuerFileError> {
    serde_json::from_str(text).map_err(|source| IssuerFileError::Malformed { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn issuer() -> EntraIssuer {
        let assignment = |principal: &str, right, entity: Option<&str>| RoleAssignment {
            principal: principal.into(),
            rights: vec![right],
            entity: entity.map(str::to_owned),
        };
        EntraIssuer {
            issuer: "https://issuer/t".into(),
            audience: AUDIENCE.into(),
            keys: vec![],
            assignments: vec![
                assignment("pods", AccessRight::Send, None),
                assignment("pods", AccessRight::Listen, Some("Events")),
            ],
        }
    }

    fn claims() -> Json {
        json!({ "iss": "https://issuer/t", "aud": AUDIENCE, "exp": 1_700_000_600, "nbf": 1_699_999_000, "oid": "pods" })
    }

    #[test]
    fn rights_follow_from_the_assignments_at_the_path() {
        let grant = issuer().check_claims(&claims(), "events/subscriptions/a", NOW).unwrap();
        assert_eq!(grant.rights, [AccessRight::Send, AccessRight::Listen]);
        assert_eq!(grant.expires_at, Timestamp(1_700_000_600_000));
        assert_eq!(issuer().check_claims(&claims(), "other", NOW).unwrap().rights, [AccessRight::Send]);
        let mut by_role = claims();
        by_role["oid"] = "someone".into();
        by_role["roles"] = json!(["other", "pods"]);
        assert!(issuer().check_claims(&by_role, "other", NOW).is_ok());
    }

    #[test]
    fn each_wrong_claim_has_its_error() {
        for (name, value, expected) in [
            ("iss", json!("https://other"), TokenError::Issuer),
            ("aud", json!("https://vault"), TokenError::WrongResource),
            ("exp", json!(1_700_000_000), TokenError::Expired),
            ("exp", Json::Null, TokenError::Malformed),
            ("nbf", json!(1_700_000_400), TokenError::NotYetValid),
            ("oid", json!("someone"), TokenError::NoRole),
        ] {
            let mut wrong = claims();
            wrong[name] = value;
            assert_eq!(issuer().check_claims(&wrong, "events", NOW).unwrap_err(), expected, "{name}");
        }
    }

    #[test]
    fn a_token_without_a_known_key_is_refused() {
        let encode = |part: &Json| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
        let token =
            |alg: &str| format!("Bearer {}.{}.AAAA", encode(&json!({ "alg": alg, "kid": "k" })), encode(&claims()));
        assert!(EntraIssuer::is_jwt(&token("RS256")));
        assert!(!EntraIssuer::is_jwt("SharedAccessSignature sr=a.b.c&sig=b&se=1&skn=c"));
        for alg in ["RS256", "none", "HS256"] {
            assert_eq!(issuer().verify(&token(alg), "events", NOW).unwrap_err(), TokenError::Signature);
        }
        assert_eq!(issuer().verify("a.b.c", "events", NOW).unwrap_err(), TokenError::Malformed);
    }

    /// A key pair of OpenSSL: ring does not generate RSA keys.
    fn key_pair() -> RsaKeyPair {
        let der = std::process::Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER"])
            .output()
            .expect("`openssl` is installed")
            .stdout;
        // Versions of OpenSSL differ in the form.
        RsaKeyPair::from_pkcs8(&der).or_else(|_| RsaKeyPair::from_der(&der)).expect("an RSA key")
    }

    fn sign(pair: &RsaKeyPair, header: &Json, claims: &Json) -> String {
        let encode = |part: &Json| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(header), encode(claims));
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).expect("the key signs");
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn only_the_signature_of_the_named_key_counts() {
        let (own, foreign) = (key_pair(), key_pair());
        let RsaPublicKeyComponents { n: modulus, e: exponent } = RsaPublicKeyComponents::<Vec<u8>>::from(own.public());
        let known = SigningKey { id: "k".into(), modulus: modulus.clone(), exponent };
        let issuer = EntraIssuer { keys: vec![known], ..issuer() };
        let header = json!({ "alg": "RS256", "kid": "k" });
        let good = sign(&own, &header, &claims());
        assert!(issuer.verify(&good, "events", NOW).is_ok());

        let refused = |token: &str| issuer.verify(token, "events", NOW).unwrap_err();
        assert_eq!(refused(&sign(&foreign, &header, &claims())), TokenError::Signature, "another key with the same id");
        assert_eq!(refused(&sign(&own, &json!({ "alg": "RS256" }), &claims())), TokenError::Signature, "no key id");
        for alg in ["none", "HS256", "RS512", "rs256"] {
            let header = json!({ "alg": alg, "kid": "k" });
            assert_eq!(refused(&sign(&own, &header, &claims())), TokenError::Signature, "{alg}");
        }
        let parts: Vec<&str> = good.split('.').collect();
        let mut changed = claims();
        changed["exp"] = json!(1_800_000_000);
        let changed = BASE64_URL_SAFE_NO_PAD.encode(changed.to_string());
        assert_eq!(refused(&format!("{}.{changed}.{}", parts[0], parts[2])), TokenError::Signature, "other claims");
        assert_eq!(refused(&format!("{}.{}.", parts[0], parts[1])), TokenError::Signature, "no signature");
        let by_modulus = BASE64_URL_SAFE_NO_PAD.encode(&modulus);
        assert_eq!(refused(&format!("{}.{}.{by_modulus}", parts[0], parts[1])), TokenError::Signature);
    }
}
