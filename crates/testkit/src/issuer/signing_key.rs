//! RSA keys: that of the issuer, and that of a client with a certificate.

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, KeyPair};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{RSA_PKCS1_SHA256, RSA_PSS_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use sha2::{Digest, Sha256};

const KEY_ID: &str = "issuer-1";

pub struct SigningKey(RsaKeyPair);

/// A certificate that an issuer accepts.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// PEM, with the private key.
    pub file: PathBuf,
    thumbprint: String,
    public_key: Vec<u8>,
}

impl SigningKey {
    /// # Panics
    /// When `openssl` cannot run.
    pub(super) fn generate(folder: &Path, name: &str) -> Self {
        Self(parse(&generate_pem(folder, name)))
    }

    /// A JWT with these claims (RS256).
    pub(super) fn sign(&self, claims: &str) -> String {
        let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let header = format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{KEY_ID}"}}"#);
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).expect("the key signs");
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    /// The public key as a JSON Web Key Set.
    pub(super) fn jwks(&self) -> String {
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(self.0.public());
        let [n, e] = [n, e].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        format!(r#"{{"keys": [{{"kty": "RSA", "use": "sig", "kid": "{KEY_ID}", "n": "{n}", "e": "{e}"}}]}}"#)
    }
}

impl ClientCertificate {
    /// Writes a new certificate and its key to `NAME.pem`.
    ///
    /// # Panics
    /// When `openssl` cannot run.
    pub fn create(folder: &Path, name: &str) -> Self {
        let pem = generate_pem(folder, name);
        let public_key = parse(&pem).public().as_ref().to_vec();
        let key = KeyPair::from_pem(&pem).expect("a key of OpenSSL");
        let certificate = CertificateParams::new(vec![name.to_owned()]).and_then(|params| params.self_signed(&key));
        let certificate = certificate.expect("a certificate");
        let thumbprint = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(certificate.der()));
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, format!("{}{pem}", certificate.pem())).expect("the folder is writable");
        Self { file, thumbprint, public_key }
    }

    /// Whether it has signed this assertion (PS256), which names it by its thumbprint.
    pub(super) fn has_signed(&self, assertion: &str) -> bool {
        let Some((signed, signature)) = assertion.rsplit_once('.') else { return false };
        let header = signed.split('.').next().and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
        let header = String::from_utf8(header.unwrap_or_default()).unwrap_or_default();
        let key = UnparsedPublicKey::new(&RSA_PSS_2048_8192_SHA256, &self.public_key);
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap_or_default();
        header.contains("\"PS256\"")
            && header.contains(&format!("\"x5t#S256\":\"{}\"", self.thumbprint))
            && key.verify(signed.as_bytes(), &signature).is_ok()
    }
}

fn generate_pem(folder: &Path, name: &str) -> String {
    let file = folder.join(format!("{name}.key"));
    let mut command = Command::new("openssl");
    command.args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"]).arg(&file);
    let output = command.output().expect("`openssl` is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(&file).expect("`openssl` has written the key")
}

fn parse(pem: &str) -> RsaKeyPair {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = base64::prelude::BASE64_STANDARD.decode(body).expect("PEM");
    RsaKeyPair::from_pkcs8(&der).expect("an RSA key")
}
