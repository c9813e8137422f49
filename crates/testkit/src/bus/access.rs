//! Certificates and keys of a test broker that requires both.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use local_cluster::{BrokerAccess, BrokerCertificate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sha2::Sha256;

/// Longer than any test moves the clock of its broker.
const ROOT_TOKEN_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Name, key and rights. Real pods have no right to manage.
const KEYS: [(&str, &str, &str); 4] = [
    ("root", "root-key", r#"["Manage", "Send", "Listen"]"#),
    ("pods", "pods-key", r#"["Send", "Listen"]"#),
    ("listener", "listener-key", r#"["Listen"]"#),
    ("sender", "sender-key", r#"["Send"]"#),
];

/// The part of a connection string that names one of the keys.
pub fn credential(name: &str) -> String {
    format!("SharedAccessKeyName={name};SharedAccessKey={name}-key")
}

/// A `SharedAccessSignature` of one of the keys for the whole namespace. With no time left it is expired.
#[expect(clippy::disallowed_methods, reason = "the expiry of a token is a wall-clock time")]
pub fn sign_token(name: &str, valid_for: Duration) -> String {
    let expiry = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() + valid_for.as_secs();
    let resource = "sb%3A%2F%2Flocalhost";
    let key = format!("{name}-key");
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("{resource}\n{expiry}").as_bytes());
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}")
}

/// Writes the files of a broker that requires TLS and keys.
pub fn create_access(folder: &Path) -> io::Result<BrokerAccess> {
    let [ca_file, certificate, private_key, keys] =
        ["ca.pem", "cert.pem", "key.pem", "keys.json"].map(|name| folder.join(name));
    let pems = make_certificates().map_err(io::Error::other)?;
    for (path, text) in [&ca_file, &certificate, &private_key].into_iter().zip(pems) {
        std::fs::write(path, text)?;
    }
    write_keys(&keys, &KEYS.map(|(name, ..)| name))?;
    let token = sign_token("root", ROOT_TOKEN_LIFETIME);
    let certificate = Some(BrokerCertificate { ca_file, certificate, private_key });
    Ok(BrokerAccess { certificate, keys, credential: credential("root"), token })
}

/// Writes a file of keys with these of the known keys. The broker reads it when it starts.
pub(crate) fn write_keys(path: &Path, names: &[&str]) -> io::Result<()> {
    let keys = KEYS.iter().filter(|(name, ..)| names.contains(name));
    let keys = keys.map(|(name, key, rights)| format!(r#"{{"name": "{name}", "key": "{key}", "rights": {rights}}}"#));
    std::fs::write(path, format!(r#"{{"keys": [{}]}}"#, keys.collect::<Vec<_>>().join(", ")))
}

/// An authority, and a certificate for `localhost` with its key, as PEM.
fn make_certificates() -> Result<[String; 3], rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.signed_by(&key, &issuer)?;
    Ok([issuer.pem(), certificate.pem(), key.serialize_pem()])
}
