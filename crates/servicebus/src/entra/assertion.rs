//! The client assertion of a certificate: a JWT that the private key signs (PS256) and whose header has the SHA-256 thumbprint of the certificate.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PSS_SHA256, RsaKeyPair};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use uuid::Uuid;

use super::Error;

/// The authority accepts up to ten minutes, and the request is sent at once.
const LIFETIME: Duration = Duration::from_secs(600);

/// Signs an assertion with a PEM file that contains a certificate and its RSA key. `now`: time since the Unix epoch.
pub(super) fn sign(file: &Path, client: &str, audience: &str, now: Duration) -> Result<String, Error> {
    let invalid = |what| Error::Certificate { path: file.to_owned(), what };
    let pem = std::fs::read(file).map_err(|source| Error::File { path: file.to_owned(), source: Arc::new(source) })?;
    let certificate = CertificateDer::from_pem_slice(&pem).map_err(|_| invalid("it contains no certificate (PEM)"))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| invalid("it contains no private key (PEM)"))?;
    let key = match &key {
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        _ => return Err(invalid("its private key is not an RSA key")),
    };
    let key = key.map_err(|_| invalid("its private key is not an RSA key of at least 2048 bits"))?;
    let thumbprint = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&certificate));
    let header = json!({ "alg": "PS256", "typ": "JWT", "x5t#S256": thumbprint });
    let claims = json!({
        "aud": audience, "iss": client, "sub": client, "jti": Uuid::new_v4().to_string(),
        "nbf": now.as_secs(), "iat": now.as_secs(), "exp": (now + LIFETIME).as_secs(),
    });
    let encode = |part: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(header), encode(claims));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PSS_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|_| invalid("its private key cannot sign"))?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}
